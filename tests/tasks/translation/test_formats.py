"""Formats of parallel text: tables, JSON lines, parquet, saved sets and two text files; no network."""

from __future__ import annotations

import csv
import gzip
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from vitrail.core.errors import DataError
from vitrail.tasks.translation.dataset import PairSplit, RawPairs
from vitrail.tasks.translation.formats import PAIR_FORMATS
from vitrail.tasks.translation.formats.tables import NAME, is_of_pairs, read_by_name
from vitrail.tasks.translation.formats.text_files import find_gap

TABLE = PAIR_FORMATS["table of pairs"]
SAVED, TEXTS = PAIR_FORMATS["Hugging Face data set of pairs"], PAIR_FORMATS["two text files"]
ROWS = [("A cat.", "Eine Katze."), ('He said "no".', '"Nein", sagte er.'), ("Yes, and no.", "Ja und nein.")]
EN_DE = ("en", "de")
SIDES = ("source", "target")


def tabs(rows: list[tuple[str, ...]], *, header: str = "") -> str:
    return "".join("\t".join(row) + "\n" for row in ([(header.replace(",", "\t"),)] if header else []) + rows)


def pairs_of(split: PairSplit) -> list[tuple[str, str]]:
    return list(zip(split.sources, split.targets, strict=True))


def sizes(raw: RawPairs) -> dict[str, int]:
    return {name: len(split) for name, split in raw.splits.items()}


def write_texts(folder: Path, stem: str, languages: str = "en de", number: int = 7) -> None:
    for language in languages.split():
        lines = [f"{stem} {language} {index}\n" for index in range(number)]
        (folder / f"{stem}.{language}").write_text("".join(lines))


def write_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


def test_every_format_says_what_it_looks_like() -> None:
    assert len(PAIR_FORMATS) == 3
    assert len({entry.rank for entry in PAIR_FORMATS.values()}) == 3
    assert all(entry.layout and entry.name == name for name, entry in PAIR_FORMATS.items())


@pytest.mark.parametrize(
    ("name", "header", "languages"),
    [
        ("rows.tsv", "en,de", EN_DE),
        ("rows.tsv", "source,target", SIDES),
        ("rows.tsv", "src,trg", SIDES),
        ("rows.tsv", "English,Fran\u00e7ais", ("en", "fr")),
        ("rows.tsv", "English,Hausa", ("en", "ha")),
        ("rows.tsv", "eng,pcm", ("eng", "pcm")),
        ("rows.tsv", "fra,bwr", ("fra", "bwr")),  # one of them is listed, and common
        ("rows.tsv", "", SIDES),
        ("eng_to_fra.tsv", "", ("eng", "fra")),
        ("eng-fra.txt", "", ("eng", "fra")),  # without a header, the name of the file tells the languages
        ("corpus.en-de.tsv", "", EN_DE),
    ],
)
def test_columns_are_found_by_the_header_or_without_one(
    tmp_path: Path, name: str, header: str, languages: tuple[str, str]
) -> None:
    path = tmp_path / name
    path.write_text(tabs(ROWS, header=header))
    assert TABLE.recognises(path, None)
    raw = TABLE.read(path, None)
    assert raw.languages == languages
    assert pairs_of(raw.splits["train"]) == ROWS
    assert raw.splits["train"].names[0] == f"{name}:{2 if header else 1}"


def test_columns_are_chosen_by_languages_and_sides(tmp_path: Path) -> None:
    path = tmp_path / "rows.tsv"
    turned = [(target, source) for source, target in ROWS]

    def read(content: str, wanted: tuple[str, str] | None = None) -> RawPairs:
        path.write_text(content)
        return TABLE.read(path, wanted)

    assert read(tabs(ROWS, header="source,target"), EN_DE).languages == EN_DE
    assert pairs_of(read(tabs(turned, header="tgt,src")).splits["train"]) == ROWS
    assert read(tabs([("7", *row) for row in ROWS], header="id,en,de")).languages == EN_DE  # not Indonesian
    assert read(tabs([("7", *row) for row in ROWS], header="id,ENGLISH,Deutsch")).languages == EN_DE
    with pytest.raises(DataError, match=r"rows.tsv has the columns 'en', 'Klingon'"):
        read(tabs([("7", *row) for row in ROWS], header="id,en,Klingon"))
    assert read(tabs([(*row, "y") for row in ROWS], header="id,en,note")).languages == ("id", "en")
    four = tabs([("x", *row, "y") for row in ROWS], header="id,en,de,fr")
    assert pairs_of(read(four, ("de", "en")).splits["train"]) == turned
    with pytest.raises(DataError, match=r"3 languages: en, de, fr"):
        read(four)
    # as sentences of Tatoeba are published
    assert pairs_of(read(tabs([(*row, "CC-BY") for row in ROWS])).splits["train"]) == ROWS
    numbered = tabs([("7", first, "9", second) for first, second in ROWS])
    assert pairs_of(read(numbered).splits["train"]) == ROWS
    assert TABLE.recognises(path, None)


@pytest.mark.parametrize("delimiter", [",", ";", "|"])
@pytest.mark.parametrize("header", [True, False])
def test_csv_has_quotes_and_any_delimiter(tmp_path: Path, delimiter: str, header: bool) -> None:
    path = tmp_path / "rows.csv"
    with path.open("w", newline="") as file:
        csv.writer(file, delimiter=delimiter).writerows([EN_DE, *ROWS] if header else ROWS)
    assert TABLE.recognises(path, None)
    assert pairs_of(TABLE.read(path, None).splits["train"]) == ROWS


def test_a_quoted_line_end_is_a_space(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text('en,de\n"two\nlines",zwei\nthree,drei\n')
    split = TABLE.read(path, None).splits["train"]
    assert pairs_of(split) == [("two lines", "zwei"), ("three", "drei")]
    assert split.names == ("rows.csv:3", "rows.csv:4")


def test_rows_of_another_width_are_reported_and_what_is_missing_is_empty(tmp_path: Path) -> None:
    path = tmp_path / "rows.tsv"
    path.write_text(tabs([*ROWS, ("alone",), ("a", "b", "c"), ("",)], header="en,de"))
    raw = TABLE.read(path, EN_DE)
    assert raw.splits["train"].targets[3:] == ("", "b", "")
    (finding,) = raw.findings
    assert finding.check == "odd-rows"
    assert finding.items == ("rows.tsv:5", "rows.tsv:6", "rows.tsv:7")


def test_a_folder_of_tables_is_divided_by_their_names(tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_text(tabs(ROWS, header="en,de"))
    (tmp_path / "test.tsv.gz").write_bytes(gzip.compress(tabs(ROWS[:1], header="de,en").encode()))
    assert TABLE.recognises(tmp_path, None)
    raw = TABLE.read(tmp_path, None)
    assert sizes(raw) == {"train": 3, "test": 1}
    assert raw.splits["test"].targets == ("A cat.",)  # the columns are found by name
    assert raw.splits["test"].names == ("test.tsv:2",)


def test_a_folder_may_hold_one_table_alone_however_long(tmp_path: Path) -> None:
    (tmp_path / "sentences.tsv").write_text(tabs(ROWS * 2000))
    assert (tmp_path / "sentences.tsv").stat().st_size > 1 << 16
    assert TABLE.recognises(tmp_path, None)
    assert sizes(TABLE.read(tmp_path, None)) == {"train": 6000}
    (tmp_path / "more.tsv").write_text(tabs(ROWS))
    assert not TABLE.recognises(tmp_path, None)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", "image,label\na.jpg,cat\n"),
        ("a.csv", "file_name,target\na b.jpg,a cat\n"),
        ("a.tsv", "path\tclass\na.jpg\tcat\n"),
        ("a.csv", "a.jpg,cat\nb.jpg,dog\n"),
        ("a.tsv", "images/a b.jpg\ta cat sits\n"),
        ("a.csv", "cat,dog\nbird,fish\n"),
        ("a.txt", "only text here\nand more\n"),
        ("a.tsv", "0\tcat one\n1\tdog two\n"),
        ("a.csv", "image,label,en,de\na.jpg,cat,A cat.,Eine Katze.\n"),
        ("a.tsv", ""),
        ("a.dat", "A cat.\tEine Katze.\n"),
        ("a.jsonl", '{"image": "a.jpg", "label": "cat"}\n'),
        ("a.jsonl", '{"step": 1, "loss": 2.5}\n'),
        ("a.jsonl", "[1]\n"),
        ("a.jsonl", "no json\n"),
        ("a.jsonl", "\n"),
        ("a.jsonl", '{"en": "a"}\n'),
        ("a.parquet", "PAR1 damaged"),
    ],
)
def test_tables_of_images_and_of_other_things_are_not_recognised(
    tmp_path: Path, name: str, content: str
) -> None:
    (tmp_path / name).write_text(content)
    assert not any(each.recognises(tmp_path / name, None) for each in (TABLE, TABLE, TABLE, SAVED, TEXTS))


GOOD = '{"en": "a", "de": "b"}\n'


@pytest.mark.parametrize(
    ("name", "content", "fault"),
    [
        ("rows.tsv", "one side alone\nand again\n", "one column alone"),
        ("rows.tsv", "en\tde\n", r"rows\.tsv in .* has no row"),
        (
            "rows.csv",
            "en,de\nA dog\rruns,Ein Hund\n",
            r"line 2 of .*rows\.csv cannot be read: new-line character",
        ),
        (
            "rows.csv",
            'en,de\nA cat.,Eine Katze.\n"A dog.,Ein Hund.\nA bird.,Ein Vogel.\n',
            r"line 3 of .*rows\.csv opens a quote that does not close",
        ),
        ("rows.jsonl", GOOD + "{\n", r"line 2 of .* is not JSON"),
        ("rows.jsonl", GOOD + "[1]\n", r"line 2 of .* is a JSON list"),
        ("rows.jsonl", GOOD + '{"en": ["a"], "de": "b"}\n', r"rows\.jsonl:2 holds list in the column 'en'"),
        ("rows.jsonl", GOOD + '{"en": true, "de": "b"}\n', r"rows\.jsonl:2 holds bool"),
        ("rows.jsonl", '{"first": "a", "second": "b"}\n', r"the columns 'first', 'second'.*named by it"),
        ("rows.parquet", "PAR1 damaged", r"rows\.parquet cannot be read as a table"),
    ],
)
def test_tables_that_cannot_be_used_say_why(tmp_path: Path, name: str, content: str, fault: str) -> None:
    (tmp_path / name).write_text(content)
    read = TABLE.read
    with pytest.raises(DataError, match=fault):
        read(tmp_path / name, None)


@pytest.mark.parametrize(
    ("shape", "languages"),
    [
        (lambda source, target: {"en": source, "de": target}, EN_DE),
        (lambda source, target: {"id": 7, "de": target, "en": source}, ("de", "en")),
        (lambda source, target: {"source": source, "target": target}, SIDES),
        (lambda source, target: {"id": 7, "translation": {"en": source, "de": target}}, EN_DE),
    ],
)
def test_json_lines_have_three_shapes(
    tmp_path: Path, shape: Callable[[str, str], dict[str, Any]], languages: tuple[str, str]
) -> None:
    rows = [("A cat.", "Eine Katze."), ("\u00fcber\u2028all", 'so "gut"')]
    path = tmp_path / "rows.jsonl"
    write_lines(path, [shape(*row) for row in rows])
    assert TABLE.recognises(path, None)
    raw = TABLE.read(path, None)
    assert raw.languages == languages
    expected = [(target, source) for source, target in rows] if languages[0] == "de" else rows
    assert pairs_of(raw.splits["train"]) == expected
    assert raw.splits["train"].names == ("rows.jsonl:1", "rows.jsonl:2")


@pytest.mark.parametrize(
    ("content", "wanted", "expected"),
    [
        ('{"en": "a", "translation": "b", "de": "c"}\n', None, [("a", "c")]),
        (
            '{"en": null, "de": "a"}\n{"de": "b \\n\\r\\n c"}\n{"en": 7, "de": 2.5}\n',
            EN_DE,
            [("", "a"), ("", "b c"), ("7", "2.5")],
        ),
        ('{"en": "x \\ud83d y", "de": "\\ud83d\\ude00"}\n', None, [("x \ufffd y", "\U0001f600")]),
        ('{"english": "a", "german": "b"}\n', ("english", "german"), [("a", "b")]),
    ],
)
def test_values_of_json_lines_become_lines_of_text(
    tmp_path: Path, content: str, wanted: tuple[str, str] | None, expected: list[tuple[str, str]]
) -> None:
    (tmp_path / "rows.jsonl").write_text(content)
    assert pairs_of(TABLE.read(tmp_path / "rows.jsonl", wanted).splits["train"]) == expected


def test_blank_lines_are_skipped_and_do_not_shift_the_names(tmp_path: Path) -> None:
    content = b'\n{"en": "a", "de": "b"}\n \n{"en": "c", "de": "d"}\n'
    (tmp_path / "train.jsonl.gz").write_bytes(gzip.compress(content))
    assert TABLE.recognises(tmp_path, None)
    assert TABLE.read(tmp_path, None).splits["train"].names == ("train.jsonl:2", "train.jsonl:4")


SOURCES, TARGETS = ["A cat.", "A dog.", None], ["Eine Katze.", "Ein Hund.", "Ein Vogel."]
STRUCTS = [{"en": source, "de": target} for source, target in zip(SOURCES, TARGETS, strict=True)]


@pytest.mark.parametrize(
    ("columns", "languages"),
    [
        ({"en": SOURCES, "de": TARGETS}, EN_DE),
        ({"target": TARGETS, "source": SOURCES, "score": [0.5, 0.25, 0.0]}, SIDES),
        ({"id": [1, 2, 3], "translation": STRUCTS}, EN_DE),
    ],
)
def test_columns_and_structs_of_parquet_are_read(
    tmp_path: Path, columns: dict[str, Any], languages: tuple[str, str]
) -> None:
    pq.write_table(pa.table(columns), tmp_path / "rows.parquet")
    assert TABLE.recognises(tmp_path / "rows.parquet", None)
    raw = TABLE.read(tmp_path / "rows.parquet", None)
    assert raw.languages == languages
    assert raw.splits["train"].sources == ("A cat.", "A dog.", "")
    assert raw.splits["train"].targets == tuple(TARGETS)
    assert raw.splits["train"].names[2] == "rows.parquet#2"


def test_parts_of_splits_are_joined(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for name in ("train-00000-of-00002", "train-00001-of-00002", "validation-00000-of-00001"):
        pq.write_table(pa.table({"translation": STRUCTS}), tmp_path / "data" / f"{name}.parquet")
    assert TABLE.recognises(tmp_path, None)
    raw = TABLE.read(tmp_path, ("de", "en"))
    assert sizes(raw) == {"train": 6, "validation": 3}
    assert len(set(raw.splits["train"].names)) == 6
    assert raw.splits["train"].sources[3] == "Eine Katze."


def test_parquet_of_images_is_not_recognised_and_unusable_text_refused(tmp_path: Path) -> None:
    path = tmp_path / "train.parquet"
    pq.write_table(pa.table({"image": [b"x"], "label": [0]}), path)
    assert not TABLE.recognises(path, None)
    assert not TABLE.recognises(tmp_path, None)
    pq.write_table(pa.table({"en": pa.array([], pa.string()), "de": pa.array([], pa.string())}), path)
    with pytest.raises(DataError, match="has no row"):
        TABLE.read(path, None)
    bad = pa.array([b"f\xfcr"], pa.binary()).view(pa.string())
    pq.write_table(pa.table({"en": bad, "de": ["x"]}), path)
    with pytest.raises(DataError, match=r"cannot be read as a table: byte 1 is not UTF-8 text"):
        TABLE.read(path, None)


def test_missing_packages_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"en": SOURCES, "de": TARGETS}), path)
    for package in ("pyarrow.parquet", "pyarrow", "datasets"):
        monkeypatch.setitem(sys.modules, package, None)
    assert not TABLE.recognises(path, None)
    with pytest.raises(DataError, match=r"needs the package pyarrow.*pip install"):
        TABLE.read(path, None)
    with pytest.raises(DataError, match=r"needs the package datasets.*pip install"):
        read_by_name("owner/name", None)


@pytest.mark.parametrize("is_divided", [True, False])
@pytest.mark.parametrize("is_struct", [True, False])
def test_saved_data_sets_are_read(tmp_path: Path, is_divided: bool, is_struct: bool) -> None:
    import datasets

    content = [{"en": f"cat {index}", "de": f"Katze {index}"} for index in range(7)]
    if is_struct:
        features = datasets.Features({"translation": datasets.Translation(["en", "de"])})
        rows = datasets.Dataset.from_dict({"translation": content}, features=features)
    else:
        rows = datasets.Dataset.from_list(content)
    if is_divided:
        rows = datasets.DatasetDict({"train": rows, "test": rows.select([5, 2]), "unsupervised": rows})
    rows.save_to_disk(str(tmp_path / "saved"))

    assert SAVED.recognises(tmp_path / "saved", None)
    raw = SAVED.read(tmp_path / "saved", ("de", "en"))

    assert raw.splits["train"].sources == tuple(row["de"] for row in content)
    assert raw.splits["train"].names[3] == "train#3"
    if is_divided:
        assert raw.splits["test"].targets == ("cat 5", "cat 2")  # the chosen rows, not the first ones
        assert [finding.check for finding in raw.findings] == ["unread-splits"]


def test_saved_images_and_other_folders_are_not_recognised_and_damaged_ones_refused(tmp_path: Path) -> None:
    import datasets

    datasets.Dataset.from_dict({"image": ["a.jpg"], "label": [0]}).save_to_disk(str(tmp_path / "saved"))
    for folder in ("saved", ".", "missing"):
        assert not SAVED.recognises(tmp_path / folder, None)
    (tmp_path / "state.json").write_text("{")
    (tmp_path / "dataset_info.json").write_text(json.dumps({"features": {"en": {}, "de": {}}}))
    assert SAVED.recognises(tmp_path, None)
    with pytest.raises(DataError, match="cannot be read as a saved data set"):
        SAVED.read(tmp_path, None)


def test_without_a_network_the_error_says_so() -> None:
    with pytest.raises(DataError, match=r"'nobody/nothing/de-en'.*cannot be loaded.*connect to the network"):
        read_by_name("nobody/nothing/de-en", None)
    with pytest.raises(DataError, match=r"'nobody'.*cannot be loaded"):
        read_by_name("nobody", None)


def test_names_of_the_hub_and_the_local_cache_tell_pairs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert NAME.match("owner/name")
    assert NAME.match("owner/name/de-en")
    assert not any(map(NAME.match, ("name", "a/b/c/d", "/a/b", "../a", "", "owner/na me")))
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path))
    for name in ("wmt/wmt14", "owner/books/de-en", "owner/books/eng_Latn-deu_Latn", "owner/books/pt_en"):
        assert is_of_pairs(name)
    for name in ("owner/books/default", "owner/pictures", "pictures", "owner/Sentences"):
        assert not is_of_pairs(name)
    for name, features in (
        ("sentences", {"translation": {"languages": ["de", "en"], "_type": "Translation"}}),
        ("pictures", {"image": {"_type": "Image"}, "label": {"_type": "ClassLabel"}}),
    ):
        folder = tmp_path / f"owner___{name}" / "default" / "0.0.0" / "abc"
        folder.mkdir(parents=True)
        (folder / "dataset_info.json").write_text(json.dumps({"features": features}))
    assert is_of_pairs("owner/Sentences")
    assert not is_of_pairs("owner/pictures")


def test_a_folder_of_texts_is_divided_by_their_names(tmp_path: Path) -> None:
    for stem, number in (("train", 7), ("dev", 3), ("test_2016", 5)):
        write_texts(tmp_path, stem, number=number)
    raw = TEXTS.read(tmp_path, None)
    assert raw.languages == ("de", "en")
    assert sizes(raw) == {"train": 7, "validation": 3, "test": 5}
    assert pairs_of(raw.splits["train"])[6] == ("train de 6", "train en 6")
    assert raw.splits["test"].names[0] == "test_2016.de:1"
    assert [finding.check for finding in raw.findings] == ["languages"]


@pytest.mark.parametrize("stem", ["train", "training", "Train.en-de", "train.clean"])
def test_longer_names_of_a_split_are_known(tmp_path: Path, stem: str) -> None:
    write_texts(tmp_path, stem)
    assert list(TEXTS.read(tmp_path, EN_DE).splits) == ["train"]


def test_a_path_names_two_files_by_what_they_have_in_common_or_by_one_of_them(tmp_path: Path) -> None:
    for stem in ("corpus.en-de", "corpus", "test_2017", "val"):
        write_texts(tmp_path, stem)
    assert TEXTS.read(tmp_path / "corpus.en-de", EN_DE).splits["train"].sources[0] == "corpus.en-de en 0"
    assert TEXTS.read(tmp_path / "corpus", EN_DE).splits["train"].sources[0] == "corpus en 0"
    assert TEXTS.recognises(tmp_path / "corpus.en", None)
    assert TEXTS.read(tmp_path / "corpus.en", None).languages == EN_DE  # the named one is the source
    assert TEXTS.read(tmp_path / "corpus.en", ("de", "en")).languages == ("de", "en")
    for stem in ("test_2017", "val"):
        assert "train" not in TEXTS.read(tmp_path / stem, None).splits


def test_gzip_and_plain_files_are_the_same_and_plain_ones_go_first(tmp_path: Path) -> None:
    write_texts(tmp_path, "train")
    expected = TEXTS.read(tmp_path, None).splits["train"].fingerprint
    for language in EN_DE:
        path = tmp_path / f"train.{language}"
        (tmp_path / f"train.{language}.gz").write_bytes(gzip.compress(path.read_bytes()))
    (tmp_path / "train.en").unlink()
    assert TEXTS.read(tmp_path, None).splits["train"].fingerprint == expected
    assert TEXTS.recognises(tmp_path / "train.en.gz", None)
    assert TEXTS.recognises(tmp_path / "train", None)
    (tmp_path / "train.de.gz").write_bytes(b"damaged")
    assert TEXTS.read(tmp_path, None).splits["train"].fingerprint == expected


def test_any_ending_is_a_language_if_it_is_asked_for(tmp_path: Path) -> None:
    write_texts(tmp_path, "train", "klingon elvish")
    assert not TEXTS.recognises(tmp_path, None)
    assert TEXTS.recognises(tmp_path, ("elvish", "klingon"))
    assert TEXTS.read(tmp_path, ("elvish", "klingon")).splits["train"].sources[0] == "train elvish 0"


def test_more_than_two_languages_must_be_chosen(tmp_path: Path) -> None:
    write_texts(tmp_path, "train", "en de fr")
    with pytest.raises(DataError, match=r"3 languages: de, en, fr"):
        TEXTS.read(tmp_path, None)
    assert TEXTS.read(tmp_path, ("fr", "de")).languages == ("fr", "de")
    with pytest.raises(DataError, match=r"no text in 'cs'"):
        TEXTS.read(tmp_path, ("en", "cs"))


def test_files_that_are_not_used_are_named(tmp_path: Path) -> None:
    for stem in ("train", "test_2018", "test_2016", "newstest"):
        write_texts(tmp_path, stem)
    write_texts(tmp_path, "test_2019", "en")
    write_texts(tmp_path, "test_2015", "en fr")
    found = {finding.check: finding for finding in TEXTS.read(tmp_path, EN_DE).findings}
    assert found["several-test"].items == ("test_2018",)
    assert "test_2016 alone is used" in found["several-test"].message
    assert found["unread-texts"].items == ("newstest",)
    assert found["unpaired-texts"].items == ("test_2015.en", "test_2019.en")


def test_one_text_without_the_name_of_a_split_is_for_training(tmp_path: Path) -> None:
    write_texts(tmp_path, "Books")
    write_texts(tmp_path, "test")
    raw = TEXTS.read(tmp_path, None)
    assert set(raw.splits) == {"train", "test"}
    assert raw.splits["train"].names[0] == "Books.de:1"
    write_texts(tmp_path, "News")
    with pytest.raises(DataError, match=r"2 texts and none is named train: Books, News"):
        TEXTS.read(tmp_path, None)


def test_other_files_and_single_languages_are_not_recognised(tmp_path: Path) -> None:
    for name in ("train.txt", "train.csv", "labels.en", "x.jpg", "x.xml", ".hidden.en", ".hidden.de"):
        (tmp_path / name).write_text("x\n")
    for path in (".", "labels.en", "train.txt", "missing/train"):
        assert not TEXTS.recognises(tmp_path / path, None)


def test_files_of_different_length_are_refused_with_the_line_where_they_part(tmp_path: Path) -> None:
    lengths = np.random.default_rng(0).integers(5, 90, size=400)
    (tmp_path / "train.en").write_text("".join("a" * length + "\n" for length in lengths))
    kept = np.delete(lengths, 250)
    (tmp_path / "train.de").write_text("".join("b" * (length + length // 9) + "\n" for length in kept))
    with pytest.raises(
        DataError, match=r"train\.en has 400 lines and train\.de has 399; they seem to part near line 25[0-2]"
    ):
        TEXTS.read(tmp_path, EN_DE)
    one, other = np.random.default_rng(0).integers(5, 90, size=(2, 400)).tolist()
    for first, second, gap in (
        (one, other[:-3], None),  # unrelated texts
        (one, one[:100], None),
        ([], one, None),
        (one[3:], one, 0),
        (one[:-3], one, 397),
    ):
        assert find_gap(first, second) == gap


@pytest.mark.parametrize(
    ("english", "german", "expected"),
    [
        (b"one\n\nthree\n\n \n\n", b"eins\nzwei\ndrei\n", [("one", "eins"), ("", "zwei"), ("three", "drei")]),
        (  # a form feed does not move one side
            "one\x0cand\u2028more\ntwo\n".encode(),
            b"\xef\xbb\xbfeins\r\nzwei\r\n",
            [("one\x0cand\u2028more", "eins"), ("two", "zwei")],
        ),
        (b"", b"", None),
    ],
)
def test_lines_end_at_line_feeds_and_blank_ones_at_one_end_are_ignored(
    tmp_path: Path, english: bytes, german: bytes, expected: list[tuple[str, str]] | None
) -> None:
    (tmp_path / "train.en").write_bytes(english)
    (tmp_path / "train.de").write_bytes(german)
    if expected is None:
        with pytest.raises(DataError, match=r"train\.en and train\.de are empty"):
            TEXTS.read(tmp_path, EN_DE)
    else:
        assert pairs_of(TEXTS.read(tmp_path, EN_DE).splits["train"]) == expected
