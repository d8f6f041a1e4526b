from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch

from making.small_runs import SMALL_RUNS
from vitrail.cli import main
from vitrail.core.errors import ConfigError, DataError
from vitrail.data.text.subwords import SentencePieceSubwords
from vitrail.data.text_preprocessing import TextPreprocessing
from vitrail.models.checkpoint import load_model
from vitrail.tasks.evaluating import evaluate
from vitrail.tasks.labelling.dataset import TextSplit
from vitrail.tasks.labelling.explanation import explain_text
from vitrail.tasks.labelling.objective import NO_LABEL, LabellingObjective
from vitrail.tasks.labelling.predictor import Labeller
from vitrail.tasks.labelling.samples import TextSource, encode_text
from vitrail.tasks.training import train
from vitrail.train.evaluate import Report

SHORT = {**SMALL_RUNS["labelling"].changes, "train.steps": 60, "optim.learning_rate": 0.02}
PLACES, PEOPLE = ["Paris", "Rome", "Oslo"], ["John Smith", "Ann", "Eve Stone"]


def write_names(folder: Path) -> Path:
    """Write sentences whose names are tagged: after "in" a place, else a person."""
    draw = random.Random(4)
    folder.mkdir()
    for split, count in (("train", 120), ("test", 20)):
        lines = []
        for _ in range(count):
            person, place = draw.choice(PEOPLE).split(), draw.choice(PLACES)
            lines += [f"{word} {mark}-PER" for word, mark in zip(person, "BI", strict=False)]
            lines += ["lives O", "in O", f"{place} B-LOC", ". O", ""]
        (folder / f"{split}.conll").write_text("\n".join(lines))
    return folder


@pytest.fixture(scope="module")
def vocabulary():
    return SentencePieceSubwords.train(["a dog runs in Paris", "the cat sees Rome"] * 3, size=60)


@pytest.fixture(scope="module")
def tagger(tmp_path_factory):
    source = write_names(tmp_path_factory.mktemp("data") / "names")
    return train(
        source,
        model="text_rnn",
        changes={**SHORT, "model.pool": "mean"},
        output=tmp_path_factory.mktemp("runs"),
    ), source


@pytest.fixture(scope="module")
def reader(tmp_path_factory):
    small = SMALL_RUNS["labelling"]
    source = small.write(tmp_path_factory.mktemp("data") / "reviews")
    return small.train(source, tmp_path_factory.mktemp("runs"), changes=SHORT, page=True), source


def test_the_deciding_word_is_learned(reader):
    assert reader[0].scores["accuracy"] >= 0.9


def test_names_are_learned_and_scored_as_spans(tagger):
    run, source = tagger
    scores = Report.load(run.folder / "report.json").scores
    assert scores["span_f1"] >= 0.9
    assert scores["accuracy"] >= 0.9
    assert evaluate(run.folder, source).scores == pytest.approx(scores, abs=1e-6)
    found = Labeller(run.folder).label(["Ann lives in Oslo."])[0]
    assert [part.source for part in found.parts] == ["Ann", "lives", "in", "Oslo", "."]
    assert found.labels == ("B-PER", "O", "O", "B-LOC", "O")


def test_words_are_labelled_at_their_first_subwords(vocabulary):
    rule = TextPreprocessing(labels="words", lower_case=False)
    split = TextSplit(
        (("a", "dogcat", "Rome"), ("the",)), (np.array([0, 2, 1]), np.array([1])), ("a:1", "a:5")
    )
    source = TextSource(split, vocabulary, rule)
    batch = LabellingObjective(["x", "y", "z"], vocabulary, rule).collate(
        [source.load(i, None) for i in (0, 1)], None
    )
    starts = [1, 2, 2 + len(vocabulary.encode(["dogcat"])[0])]
    assert batch.labels[0, starts].tolist() == [0, 2, 1]
    assert (batch.labels != NO_LABEL).sum() == 4
    assert batch.tokens[1].tolist()[:2] == [vocabulary.begin_id, vocabulary.encode(["the"])[0][0]]
    assert batch.lengths.tolist() == [
        len(row) for row in (source.load(0, None).encoded.row, source.load(1, None).encoded.row)
    ]


def test_long_texts_are_cut_and_long_tagged_sentences_refused(vocabulary):
    text = "a dog runs in Paris the cat sees Rome"
    cut = encode_text([text], vocabulary, TextPreprocessing(max_length=6), name="a:1")
    assert len(cut.row) == 6
    assert cut.row[-1] == vocabulary.end_id
    with pytest.raises(DataError, match=r"a:1 has 9 words of \d+ subwords.*Divide"):
        encode_text(text.split(), vocabulary, TextPreprocessing(labels="words", max_length=6), name="a:1")
    for parts in ([], [""], ["  "]):
        with pytest.raises(DataError, match="a:1 is a sentence without words"):
            encode_text(parts, vocabulary, TextPreprocessing(), name="a:1")


def test_batches_hold_every_text_once_and_little_padding(vocabulary):
    draw = random.Random(1)
    parts = tuple((" ".join(["dog"] * draw.randint(1, 30)),) for _ in range(200))
    split = TextSplit(parts, (np.array([0]),) * 200, tuple(f"a:{i}" for i in range(200)))
    source = TextSource(split, vocabulary, TextPreprocessing())
    for generator in (None, torch.Generator().manual_seed(3)):
        plan = source.plan_batches(300, generator)
        lengths = [[len(source.load(i, None).encoded.row) for i in batch] for batch in plan]
        assert sorted(index for batch in plan for index in batch) == list(range(200))
        assert all(len(batch) == 1 or len(batch) * max(batch) <= 300 for batch in lengths)
        padded = sum(len(batch) * max(batch) for batch in lengths)
        assert sum(map(sum, lengths)) > 0.85 * padded


def test_tables_have_the_index_of_each_text_or_word(reader, tagger):
    reports = [json.loads((run.folder / "report.json").read_text()) for run, _ in (reader, tagger)]
    of_texts, of_words = (report["tables"]["indices"] for report in reports)
    assert of_texts == [*range(len(of_texts))]
    texts, places = zip(*(divmod(number, 2**20) for number in of_words), strict=True)
    assert sorted(set(texts)) == [*range(20)]
    assert places[: texts.count(0)] == tuple(range(texts.count(0)))


def test_one_sentence_alone_is_a_list_of_one(reader):
    (found,) = Labeller(reader[0].folder).label("big man runs")
    assert found.text == "big man runs"


def test_the_page_shows_errors_and_the_words_that_decide(reader):
    page = (reader[0].folder / "report.html").read_text()
    assert "Which words decide" in page
    assert "Scores of each class" in page
    assert "mean over the texts" in page
    assert "images" not in page.split("<body>")[1].split("Repeat it")[0]


def test_the_deciding_word_is_found_by_hiding_words(reader):
    explanation = explain_text(Labeller(reader[0].folder), "big man sees a man dog runs")
    lost = explanation.part("occlusion").layers[0].weights[0, 0, 0]
    assert explanation.label == "dog"
    assert int(lost.argmax()) == 5
    assert explanation.part("attention").layers[0].weights.shape[-1] == len(
        explanation.part("attention").keys.texts
    )


def test_lines_are_labelled_from_the_command_line(reader, tagger, tmp_path, capsys):
    run, names = str(reader[0].folder), str(tagger[0].folder)
    (tmp_path / "lines.txt").write_text("a dog runs\n\na big man\n")
    assert main(["label", run, str(tmp_path / "lines.txt"), "--json"]) == 1
    first, empty, third = json.loads(capsys.readouterr().out)
    assert (first["class"], third["class"]) == ("dog", "none")
    assert "sentence without words" in empty["error"]
    assert [each["line"] for each in (first, empty, third)] == [1, 2, 3]
    assert main(["label", run, "--text", "a dog runs", "--top", "2", "-o", str(tmp_path / "found.csv")]) == 0
    lines = (tmp_path / "found.csv").read_text().splitlines()
    assert lines[0] == "line,text,label,probability"
    assert len(lines) == 3
    assert main(["label", run, str(tmp_path / "lines.txt"), "-o", str(tmp_path / "found.csv")]) == 1
    assert (tmp_path / "found.csv").read_text().splitlines()[2] == "2,,,"
    assert main(["label", run, str(tmp_path / "found.csv")]) == 2
    assert "is a table" in " ".join(capsys.readouterr().err.split())
    assert main(["label", names, "--text", "Ann lives in Oslo ."]) == 0
    assert "B-LOC" in capsys.readouterr().out
    assert main(["label", run, "x.txt", "--text", "a"]) == 2


def test_what_runs_a_model_of_texts_is_named_where_it_cannot_be_exported(reader, tmp_path, capsys):
    run = str(reader[0].folder)
    assert main(["export", run, "--format", "onnx", "-o", str(tmp_path / "out")]) == 2
    assert "vitrail label, in Python vitrail.Labeller, or vitrail serve" in " ".join(
        capsys.readouterr().err.split()
    )
    assert main(["bench", run]) == 2
    assert "reads no images" in " ".join(capsys.readouterr().err.split())


def test_models_without_attention_are_explained_by_hiding_words(tagger, tmp_path, capsys):
    run = tagger[0].folder
    page, picture = tmp_path / "page.html", tmp_path / "words.png"
    assert main(["explain", str(run), "--text", "Ann lives in Oslo", "-o", str(page)]) == 0
    assert main(["explain", str(run), "--text", "Ann lives in Oslo", "-o", str(picture)]) == 0
    assert picture.stat().st_size > 1000
    words = " ".join(capsys.readouterr().err.split())
    assert (
        "probability lost without each word, from 0% (white) to 100% (blue), shaded by the square root: "
        in words
    )
    assert "weights" not in words
    assert main(["explain", str(run), "--text", "Ann lives", "--head", "1", "-o", str(picture)]) == 2
    assert "a model without attention" in capsys.readouterr().err


def test_labels_of_the_other_kind_are_refused(reader, tagger, tmp_path):
    with pytest.raises(DataError, match=r"a label for each word.*a label for each text"):
        evaluate(reader[0].folder, tagger[1])
    with pytest.raises(DataError, match="a label for each text"):
        train(reader[1], changes={**SHORT, "model.labels": "words"}, output=tmp_path)


def test_weights_of_texts_start_a_tagger(reader, tagger):
    found = train(tagger[1], weights=reader[0].folder, changes={"train.steps": 1}, dry_run=True)
    assert found.parts.model.config.labels == "words"
    assert found.parts.model.head.weight.shape[0] == len(found.parts.class_names)
    own = load_model(reader[0].folder / "model").model
    assert torch.equal(found.parts.model.embedding.weight, own.embedding.weight)


def test_a_mixer_that_needs_positions_is_named(reader, tmp_path):
    with pytest.raises(ConfigError, match="sinusoidal"):
        train(reader[1], changes={"model.mixer": "pooling", "train.steps": 1}, output=tmp_path)
