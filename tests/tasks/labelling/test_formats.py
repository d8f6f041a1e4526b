from __future__ import annotations

import json
from pathlib import Path

import pytest

from vitrail.core.errors import DataError
from vitrail.tasks.labelling.opening import open_texts, recognises
from vitrail.tasks.labelling.settings import TextDataSettings
from vitrail.tasks.registry import recognise

CONLL = "-DOCSTART- -X- O\n\nJohn NNP B-PER\nruns VBZ O\n. . O\n\nParis NNP B-LOC\n\n"
UNIVERSAL = (
    "# text = It's here\n"
    "1-2\tIt's\t_\t_\t_\t_\t_\t_\t_\t_\n"
    "1\tIt\tit\tPRON\tPRP\t_\t4\tnsubj\t_\t_\n"
    "2\t's\tbe\tAUX\tVBZ\t_\t4\tcop\t_\t_\n"
    "2.1\t_\t_\t_\t_\t_\t_\t_\t_\t_\n"
    "3\t#\t#\tSYM\tSYM\t_\t4\tdep\t_\t_\n"
)
SENTENCES = {"good film": "praise", "bad, bad film": "blame", 'a "fine" one': "praise", "poor": "blame"}


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def all_rows(source: Path, **settings: object) -> dict[tuple[str, ...], tuple[str, ...]]:
    dataset = open_texts(source, settings=TextDataSettings(source=str(source), **settings))
    return {
        parts: tuple(dataset.class_names[label] for label in labels)
        for split in dataset.splits.values()
        for parts, labels in zip(split.parts, split.labels, strict=True)
    }


@pytest.mark.parametrize(
    ("name", "content"),
    [
        (
            "films.tsv",
            "sentence\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in SENTENCES.items()),
        ),
        (
            "films.csv",
            "id,text,sentiment\n"
            + "".join('7,"{}",{}\n'.format(t.replace('"', '""'), label) for t, label in SENTENCES.items()),
        ),
        (
            "films.jsonl",
            "".join(json.dumps({"text": text, "label": label}) + "\n" for text, label in SENTENCES.items()),
        ),
    ],
)
def test_tables_of_texts_are_read_alike(tmp_path, name, content):
    path = write(tmp_path / name, content)
    assert recognise(path) == "labelling"
    assert all_rows(path) == {(text,): (label,) for text, label in SENTENCES.items()}


def test_a_column_of_labels_is_named_where_it_is_not_known(tmp_path):
    rows = "".join(f'"{text.replace(chr(34), chr(34) * 2)}",x,{label}\n' for text, label in SENTENCES.items())
    path = write(tmp_path / "films.csv", "text,label,mood\n" + rows)
    assert all_rows(path, label_column="mood") == {(text,): (label,) for text, label in SENTENCES.items()}
    path = write(tmp_path / "films.csv", "text,note,mood\n" + rows)
    assert recognise(path) == "labelling"
    assert all_rows(path, label_column="mood") == {(text,): (label,) for text, label in SENTENCES.items()}
    for named, message in (
        ("", "has no column of labels.*--label-column"),
        ("moods", "has no column 'moods'"),
    ):
        with pytest.raises(DataError, match=message):
            all_rows(path, label_column=named)


def test_a_table_without_column_names_is_read_by_its_content(tmp_path):
    texts = [(f"{word} {i}.", language) for i in range(6) for word, language in (("Go", "en"), ("Geh", "de"))]
    path = write(tmp_path / "lang.tsv", "".join(f"{text}\t{language}\n" for text, language in texts))
    assert recognise(path) == "labelling"
    assert all_rows(path) == {(text,): (language,) for text, language in texts}


def test_splits_of_a_folder_and_of_a_column_are_kept(tmp_path):
    for split in ("train", "valid", "test"):
        write(tmp_path / "films" / f"{split}.csv", f"text,label\nthe {split} one,1\nanother {split},0\n")
    dataset = open_texts(tmp_path / "films")
    assert [part.parts[0] for part in dataset.splits.values()] == [
        ("the train one",),
        ("the valid one",),
        ("the test one",),
    ]
    assert (dataset.class_names, dataset.labels) == (("0", "1"), "sentence")
    rows = "text,label,split\na a,x,train\nb b,y,train\nc c,x,dev\nd d,y,test\n"
    dataset = open_texts(write(tmp_path / "one.csv", rows))
    assert [len(part) for part in dataset.splits.values()] == [2, 1, 1]
    assert dataset.validation.parts == (("c c",),)


def test_rows_without_a_label_are_left_out_and_reported(tmp_path):
    rows = [{"text": "a", "label": 1.0}, {"text": "b", "label": None}, {"text": "c", "label": 2}]
    path = write(tmp_path / "films.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    assert all_rows(path) == {("a",): ("1",), ("c",): ("2",)}
    (finding,) = [each for each in open_texts(path).findings if each.check == "unlabelled-rows"]
    assert finding.items == ("films.jsonl:2",)


def test_columns_of_words_and_tags_are_sentences(tmp_path):
    path = write(tmp_path / "names.conll", CONLL)
    assert recognise(path) == "labelling"
    expected = {("John", "runs", "."): ("B-PER", "O", "O"), ("Paris",): ("B-LOC",)}
    assert all_rows(path) == expected
    assert all_rows(path, tag_column=1) == {
        ("John", "runs", "."): ("NNP", "VBZ", "."),
        ("Paris",): ("NNP",),
    }
    for split in ("train", "dev", "test"):
        write(tmp_path / "folder" / f"{split}.txt", CONLL)
    assert recognise(tmp_path / "folder") == "labelling"
    assert open_texts(tmp_path / "folder").validation.names == ("dev.txt:3", "dev.txt:7")


def test_universal_dependencies_give_parts_of_speech(tmp_path):
    path = write(tmp_path / "it.conllu", UNIVERSAL)
    assert all_rows(path) == {("It", "'s", "#"): ("PRON", "AUX", "SYM")}
    assert all_rows(path, tag_column=4) == {("It", "'s", "#"): ("PRP", "VBZ", "SYM")}


@pytest.mark.parametrize(
    "row",
    [
        {"tokens": ["John", "runs"], "ner_tags": ["B-PER", "O"]},
        {"words": "John runs", "tags": "B-PER O"},
    ],
)
def test_lists_of_words_and_tags_are_read(tmp_path, row):
    path = write(tmp_path / "names.jsonl", json.dumps(row) + "\n")
    assert all_rows(path) == {("John", "runs"): ("B-PER", "O")}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.conll", "John B-PER\nruns\n", r"line 2 of .*a.conll has 1 column, and the lines before it 2"),
        ("a.conll", "John\nruns\n", r"line 1 of .* has 1 column.*data.tag_column=NUMBER"),
        (
            "a.jsonl",
            '{"tokens": ["John", "runs"], "tags": ["B-PER"]}\n',
            r"a.jsonl:1 has 2 words and 1 tags",
        ),
        ("a.jsonl", '{"text": "a", "label": ["x", "y"]}\n', r"a label is \['x', 'y'\]"),
        ("a.jsonl", '{"text": "a", "label": 1}\n{"text": \n', r"line 2 of .* is not JSON"),
        ("a.csv", 'text,label\n"never closed,x\nanother,y\n', r"opens a quote"),
        ("a.csv", "text,label\na,x|y\nb,x\n", r"several classes of one text, such as 'x\|y'"),
        ("a.csv", "text,rating\n" + "".join(f"t{i},{i}.5\n" for i in range(12)), r"12 different numbers"),
    ],
)
def test_damaged_files_say_what_is_wrong_and_where(tmp_path, name, content, message):
    path = write(tmp_path / name, content)
    with pytest.raises(DataError, match=message):
        open_texts(path)


def test_a_column_of_tags_that_is_not_there_is_refused(tmp_path):
    path = write(tmp_path / "names.conll", CONLL)
    with pytest.raises(DataError, match="3 columns, and the tags are looked for in column 5"):
        all_rows(path, tag_column=5)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("pairs.tsv", "A dog runs.\tEin Hund rennt.\nA cat.\tEine Katze.\n"),
        ("images.csv", "image,text,label\na.png,a dog,dog\n"),
        ("images.csv", "image,label\na.png,dog\n"),
        ("notes.txt", "one line\n\nanother line of text\n"),
    ],
)
def test_other_data_is_not_taken(tmp_path, name, content):
    assert not recognises(str(write(tmp_path / name, content)))


def test_what_is_not_there_or_unknown_is_refused(tmp_path):
    with pytest.raises(DataError, match="there is no path"):
        open_texts(tmp_path / "nothing.csv")
    with pytest.raises(DataError, match=r"no labelled texts in a known format.*'text' and 'label'"):
        open_texts(write(tmp_path / "a.csv", "x,y\n1,2\n"))


@pytest.fixture
def on_hub(tmp_path, monkeypatch):
    """Return a function that puts a data set on the hub and into its cache; and the names asked for."""
    import datasets

    published, asked = {}, []

    def publish(name, features, rows):
        splits = {split: datasets.Dataset.from_list(part, features=features) for split, part in rows.items()}
        published[name] = datasets.DatasetDict(splits)
        folder = tmp_path / name.replace("/", "___") / "default" / "0.0.0"
        write(folder / "dataset_info.json", json.dumps({"features": features.to_dict()}))

    def load_dataset(name, *config):
        asked.append((name, *config))
        return published[name]

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path))
    return publish, asked


def test_labelled_texts_are_read_from_the_hub_by_name(on_hub, tmp_path):
    from datasets import ClassLabel, Features, Image, List, Value

    publish, asked = on_hub
    sentences = Features({"sentence": Value("string"), "label": ClassLabel(names=["blame", "praise"])})
    rows = [{"sentence": f"film {i}", "label": i % 2} for i in range(20)]
    publish("someone/films", sentences, {"train": rows, "test": [{"sentence": "unknown", "label": -1}]})
    tags = List(ClassLabel(names=["O", "B-PER"]))
    words = [{"tokens": ["Ann", "runs"], "ner_tags": [1, 0]}]
    publish("someone/people", Features({"tokens": List(Value("string")), "ner_tags": tags}), {"train": words})
    publish(
        "someone/pictures",
        Features({"image": Image(), "label": Value("string")}),
        {"train": [{"image": None, "label": "x"}]},
    )

    films = open_texts("hf:someone/films/default")
    assert asked == [("someone/films", "default")]
    assert (films.class_names, films.labels) == (("blame", "praise"), "sentence")
    assert len(films.test) == 4  # drawn, for the published one has no labels
    assert all(
        int(parts[0][5:]) % 2 == labels[0]
        for parts, labels in zip(films.train.parts, films.train.labels, strict=True)
    )
    (finding,) = [each for each in films.findings if each.check == "unlabelled-rows"]
    assert finding.items == ("test#0",)
    people = all_rows("someone/people")
    assert people == {("Ann", "runs"): ("B-PER", "O")}

    names = (
        "hf:someone/films",
        "someone/people",
        "hf:fancyzhx/ag_news",
        "hf:someone/pictures",
        "someone/beans",
    )
    assert [recognise(name) for name in names] == ["labelling"] * 3 + ["classification"] * 2


def test_a_saved_set_of_labelled_texts_is_read(tmp_path):
    import datasets

    rows = [{"text": text, "label": label} for text, label in SENTENCES.items()]
    datasets.Dataset.from_list(rows).save_to_disk(tmp_path / "saved")
    assert recognise(tmp_path / "saved") == "labelling"
    assert all_rows(tmp_path / "saved") == {(text,): (label,) for text, label in SENTENCES.items()}


def test_held_out_sentences_have_their_share_of_each_label(tmp_path):
    rows = "".join(f"text {i},{'rare' if i % 5 == 0 else 'usual'}\n" for i in range(100))
    dataset = open_texts(write(tmp_path / "films.csv", "text,label\n" + rows))
    assert dataset.test.count_per_class(2).tolist() == [4, 16]
    changed = open_texts(write(tmp_path / "films.csv", "text,label\n" + rows.replace("99,usual", "99,rare")))
    assert changed.fingerprint != dataset.fingerprint
