"""The whole way of pairs of sentences: checked, trained, resumed, scored, translated, explained, refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from making.small_runs import SMALL_RUNS, write_corpus
from vitrail.cli import main
from vitrail.core.errors import ConfigError, DataError
from vitrail.models.checkpoint import load_model
from vitrail.tasks.training import TrainedRun
from vitrail.tasks.translation.predictor import Translator
from vitrail.train.evaluate import Report

pytest.importorskip("sentencepiece", reason="needs the extra translation")
pytest.importorskip("sacrebleu", reason="needs the extra translation")

RUN = SMALL_RUNS["translation"]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def finished(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> TrainedRun:
    return RUN.train(corpus, tmp_path_factory.mktemp("runs"), page=True, name="first", seed=3)


def test_a_run_leaves_a_translator_with_its_vocabulary_and_a_report(finished: TrainedRun) -> None:
    assert finished.headline == "bleu"
    assert finished.score == finished.scores["bleu"]
    assert {"bleu", "chrf", "bleu_tokenised", "nll"} <= finished.scores.keys()
    report = Report.load(finished.folder / "report.json")
    assert report.signature["samples"] == "11"
    assert "tok 13a" in report.signature["bleu"]
    page = finished.report_path.read_text()
    assert "BLEU" in page
    assert "vitrail train" in page
    assert [path.name for path in (finished.folder / "files").iterdir()] == ["subwords.model"]
    loaded = load_model(finished.folder / "model")
    assert loaded.preprocessing["languages"] == ["en", "de"]
    assert loaded.files["subwords.model"] == (finished.folder / "files" / "subwords.model").read_bytes()


@pytest.mark.parametrize("model", ["rnn", "rnn_tanh", "rnn_additive", "gru_additive"])
def test_recurrent_models_go_the_same_way(corpus: Path, tmp_path: Path, model: str) -> None:
    changes = {"model.embedding_dim": 8, "model.hidden_dim": 12, "train.steps": 2}
    kept = {name: value for name, value in RUN.changes.items() if not name.startswith("model.")}
    run = RUN._replace(changes=kept, model=model)
    done = run.train(corpus, tmp_path, page=model == "rnn", changes=changes)

    translated = list(Translator(done.folder).translate(["a dog runs", ""]))
    assert len(translated) == 2
    assert translated[1].text == ""


def test_separate_vocabularies_are_kept_apart(corpus: Path, tmp_path: Path) -> None:
    changes = {"data.joint_vocabulary": False, "model.tie": "output", "train.steps": 1}
    done = RUN.train(corpus, tmp_path, name="apart", changes=changes)

    files = {path.name for path in (done.folder / "files").iterdir()}
    assert files == {"source-subwords.model", "target-subwords.model"}


def test_lines_are_translated_from_a_file(
    finished: TrainedRun, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    source = tmp_path / "letter.en"
    source.write_bytes(b"a dog runs\n\nman \xff sees\na man\n")

    code = main(["translate", str(finished.folder), str(source), "--beam", "2"])

    written, told = capfdbinary.readouterr()
    assert code == 1
    assert len(written.decode().split("\n")) == 5
    assert b"line 3: error" in told
    assert written.split(b"\n")[1:3] == [b"", b""]


def test_the_form_of_the_length_penalty_is_asked_for_on_the_command_line(
    finished: TrainedRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "letter.en"
    source.write_text("a dog runs\n")
    command = ["translate", str(finished.folder), str(source), "--scores", "--length-penalty", "0.6"]

    scores = []
    for form in ("power", "gnmt"):
        assert main([*command, "--penalty-form", form]) == 0
        scores.append(float(capsys.readouterr().out.split("\t")[0]))
    assert scores[0] != scores[1]
    assert main([*command, "--penalty-form", "google"]) == 2
    assert "gnmt" in capsys.readouterr().err


def test_data_is_checked_from_the_command_line(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(corpus), "--languages", "en,de"]) == 0
    assert "161 pairs" in capsys.readouterr().out
    assert main(["check", str(corpus), "--languages", "en"]) == 2
    assert "two codes" in capsys.readouterr().err


def test_a_text_is_explained_from_the_command_line(
    finished: TrainedRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "dog.html"

    assert main(["explain", str(finished.folder), "--text", "a dog runs", "-o", str(page)]) == 0

    assert "dog" in page.read_text()
    assert capsys.readouterr().out.strip() == str(page)
    assert main(["explain", str(finished.folder), "dog.jpg", "--text", "a dog"]) == 2
    assert "--text" in capsys.readouterr().err


def test_wrong_requests_are_refused(finished: TrainedRun, corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="image_size"):
        RUN.train(corpus, tmp_path, changes={"data.image_size": [8, 8]})
    with pytest.raises(DataError, match="fr"):
        RUN.train(corpus, tmp_path, changes={"data.languages": ["en", "fr"]})
    (tmp_path / "only").mkdir()
    for language in ("en", "de"):
        (tmp_path / "only" / f"test.{language}").write_text("a dog\n")
    with pytest.raises(DataError, match=r"train"):
        RUN.train(tmp_path / "only", tmp_path)
