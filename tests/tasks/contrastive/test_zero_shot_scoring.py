"""A CLIP is scored on images with classes by their names, and told what it cannot be scored on."""

from __future__ import annotations

from pathlib import Path

import pytest

from making.colour_clip import load_colour_clip, write_colour_images
from vitrail.cli import main
from vitrail.core.errors import ConfigError, DataError
from vitrail.tasks.classification.opening import open_dataset
from vitrail.tasks.contract import Sentences
from vitrail.tasks.contrastive.zero_shot import by_names
from vitrail.tasks.evaluating import evaluate


@pytest.fixture
def clip(monkeypatch: pytest.MonkeyPatch) -> str:
    """Something that stands for a saved CLIP, which knows colours."""
    monkeypatch.setattr("vitrail.tasks.evaluating.load_any", lambda run: load_colour_clip())
    return "colours"


def test_classes_are_recognised_by_their_names(clip: str, image_folder: Path) -> None:
    report = evaluate(clip, image_folder)

    assert report.scores["accuracy"] == 1.0
    assert report.class_names == ("blue", "green", "red")
    assert report.signature["zero_shot"] == "a photo of a {}."
    assert report.signature["input"].startswith("16x24")
    assert "names" not in report.signature


def test_other_names_take_the_places_of_the_classes(clip: str, image_folder: Path) -> None:
    swapped = evaluate(clip, image_folder, names=["green", "blue", "red"], templates=["plain", "a {}"])

    assert swapped.scores["accuracy"] < 0.5
    assert swapped.class_names == ("blue", "green", "red")
    assert swapped.signature["zero_shot"] == "plain / a {}"
    assert swapped.signature["names"].startswith("given@")


def test_line_signs_of_folders_are_read_as_spaces(tmp_path: Path) -> None:
    for colour in ("blue", "red"):
        write_colour_images(tmp_path / f"a_{colour}_thing", [colour, "green"])
    loaded, dataset = load_colour_clip(), open_dataset(tmp_path)

    classifier, _ = by_names(loaded, dataset, Sentences())
    spaced, _ = by_names(loaded, dataset, Sentences(names=["a blue thing", "a red thing"]))
    lined, _ = by_names(loaded, dataset, Sentences(names=["a_blue_thing", "a_red_thing"]))

    assert classifier.class_names == ["a_blue_thing", "a_red_thing"]
    assert classifier.model.class_embeddings.equal(spaced.model.class_embeddings)
    assert not classifier.model.class_embeddings.equal(lined.model.class_embeddings)


def test_names_that_do_not_fit_are_refused(clip: str, image_folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"2 names were given for 3 classes.*blue, green, red"):
        evaluate(clip, image_folder, names=["red", "green"])
    with pytest.raises(ConfigError, match="an empty name"):
        evaluate(clip, image_folder, names=["red", "", "blue"])


def test_images_without_captions_and_classes_are_sent_to_other_commands(clip: str, tmp_path: Path) -> None:
    write_colour_images(tmp_path)

    with pytest.raises(DataError, match=r"neither captions nor classes.*vitrail classify"):
        evaluate(clip, tmp_path)
    with pytest.raises(DataError, match="there is no path"):
        evaluate(clip, tmp_path / "missing")


def test_the_command_takes_templates_and_names(
    clip: str, image_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["evaluate", clip, str(image_folder), "--template", "a small {}", "--names", "blue,green,red"]

    assert main(asked) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("accuracy")
    assert "zero_shot:a small {}" in " ".join(shown.split())


def test_a_classifier_takes_no_templates(monkeypatch: pytest.MonkeyPatch, image_folder: Path) -> None:
    from making.small_exports import small_vit

    monkeypatch.setattr("vitrail.tasks.evaluating.load_any", lambda run: small_vit())

    with pytest.raises(ConfigError, match="templates were given to score vit_nano"):
        evaluate("photos", image_folder, templates=["a {}"])
