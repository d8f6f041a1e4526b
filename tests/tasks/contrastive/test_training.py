"""A CLIP is trained on captioned images from a path to a report, and used afterwards."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from making.small_runs import SMALL_RUNS
from vitrail.cli import main
from vitrail.core.errors import ConfigError, DataError
from vitrail.engines.loading import load_any
from vitrail.lab.small_clip import COLOURS, SHAPES, draw_shape
from vitrail.tasks.contrastive.settings import ContrastiveExperiment
from vitrail.tasks.contrastive.zero_shot import ZeroShotClassifier
from vitrail.tasks.registry import open_run
from vitrail.tasks.training import TrainedRun, train
from vitrail.train.evaluate import Report

SMALL = SMALL_RUNS["contrastive"].changes


@pytest.fixture(scope="module")
def captioned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images of coloured shapes with two captions each."""
    folder, random, lines = tmp_path_factory.mktemp("captioned"), Random(0), ["image,caption"]
    for place in range(24):
        shape, colour = SHAPES[place % 3], tuple(COLOURS)[place % 2]
        draw_shape(shape, colour, random, size=20).save(folder / f"{place}.png")
        lines += [f"{place}.png,A {colour} {shape}", f"{place}.png,the {shape} number {place}"]
    (folder / "captions.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def run(captioned: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("runs")
    trained = train(captioned, model="clip_tiny", changes=SMALL, output=output, name="clip", seed=0)
    assert isinstance(trained, TrainedRun)
    assert trained.headline == "mean_recall"
    assert 0 <= trained.score <= 1
    return trained.folder


def test_a_run_holds_a_model_a_vocabulary_and_a_report(run: Path) -> None:
    loaded = load_any(run)
    page = (run / "report.html").read_text(encoding="utf-8")
    assert isinstance(open_run(run).experiment, ContrastiveExperiment)
    assert loaded.preprocessing["task"] == "contrastive"
    assert loaded.model_settings["vocabulary_size"] <= 40
    assert loaded.model_settings["end_id"] == 2
    assert "captions" in Report.load(run / "report.json").signature["among"]
    assert "Found by captions" in page
    assert page.count("<img") >= 5
    assert "mean recall" in page


def test_a_run_classifies_by_names_it_was_not_trained_on(run: Path, captioned: Path) -> None:
    predictions = ZeroShotClassifier(run, ["star", "moon"]).predict([captioned / "0.png"])
    assert predictions[0].label in ("star", "moon")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["classify", "RUN", "IMAGE"], "neither --names nor --names-file"),
        (["classify", "RUN", "IMAGE", "--names", " , "], "an empty name was given"),
        (["classify", "RUN", "IMAGE", "--names", "dog,,cat"], "an empty name was given"),
        (["classify", "RUN", "IMAGE", "--names", "a,b", "--template", "photo"], "no placeholders for a name"),
        (["classify", "RUN", "IMAGE", "--names-file", "missing.txt"], "missing.txt cannot be read"),
        (["retrieve", "RUN", "IMAGE"], "no text was given"),
        (["predict", "RUN", "IMAGE"], "vitrail classify, which takes names of classes, or vitrail retrieve"),
        (["explain", "RUN", "IMAGE"], "no text was given to compare the image with"),
    ],
)
def test_commands_without_names_or_texts_are_refused(
    run: Path, captioned: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    places = {"RUN": str(run), "IMAGE": str(captioned / "0.png")}
    assert main([places.get(each, each) for each in arguments]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_commands_show_classes_and_images(
    run: Path, captioned: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images = [str(captioned / f"{place}.png") for place in range(2)]
    assert main(["classify", str(run), *images, "--names", "star,moon", "--template", "{}"]) == 0
    assert "%" in capsys.readouterr().out
    assert main(["retrieve", str(run), *images, "--text", "a red star", "--top", "1"]) == 0
    out = capsys.readouterr().out
    assert "a red star" in out
    assert out.count(".png") == 1


def test_commands_write_files_of_the_form_that_their_name_says(
    run: Path, captioned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image, classes, found = captioned / "0.png", tmp_path / "classes.csv", tmp_path / "found.csv"
    asked = ["classify", str(run), str(image), "--names", "star,moon", "-o"]
    searched = ["retrieve", str(run), str(image), "--text", "a red star", "-o"]

    assert main([*asked, str(classes)]) == 0
    assert main([*searched, str(found)]) == 0
    assert main([*asked, str(tmp_path / "classes.json")]) == 0
    assert capsys.readouterr().out == f"{classes}\n{found}\n{tmp_path / 'classes.json'}\n"
    assert classes.read_text().startswith(f"image,rank,class,probability,error\n{image},1,")
    assert found.read_text().startswith("query,rank,found,cosine,error\na red star,1,")
    assert json.loads((tmp_path / "classes.json").read_text())[0]["source"] == str(image)
    assert main([*asked, str(tmp_path / "classes.xyz")]) == 2
    assert main([*searched, str(tmp_path / "found.txt")]) == 2
    assert " ".join(capsys.readouterr().err.split()).count("no suffix of a known form") == 2


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"model.text_num_heads": 5}, ConfigError, "text_num_heads 5 does not divide"),
        ({"data.vocabulary_sise": 5}, ConfigError, "vocabulary_size"),
        ({"task.label_smoothing": 0.1}, ConfigError, "label_smoothing"),
    ],
)
def test_settings_that_do_not_fit_are_refused(
    captioned: Path, tmp_path: Path, changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        train(captioned, model="clip_tiny", changes=SMALL | changes, output=tmp_path, dry_run=True)


def test_captions_without_images_are_refused(tmp_path: Path) -> None:
    (tmp_path / "captions.csv").write_text("image,caption\nmissing.png,a dog\n", encoding="utf-8")
    with pytest.raises(DataError, match="none of them is there"):
        train(tmp_path, model="clip_tiny", changes=SMALL, output=tmp_path / "runs")
