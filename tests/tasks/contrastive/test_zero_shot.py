"""Classification by any names: prompts, ensembles, files that cannot be read, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from making.colour_clip import COLOURS, load_colour_clip, write_colour_images
from vitrail.cli import main
from vitrail.core.errors import CheckpointError, ConfigError, DataError
from vitrail.data.preprocessing import Preprocessing
from vitrail.tasks.classification.opening import open_dataset
from vitrail.tasks.contract import Sentences
from vitrail.tasks.contrastive.predictor import ImageTextEncoder
from vitrail.tasks.contrastive.zero_shot import (
    NAMED,
    PLAIN,
    ZeroShotClassifier,
    by_names,
    check_names,
    embed_classes,
    read_templates,
)
from vitrail.tasks.evaluating import evaluate


@pytest.fixture(scope="module")
def encoder() -> ImageTextEncoder:
    return ImageTextEncoder(load_colour_clip(), batch_size=2)


def test_images_get_the_name_that_is_nearest(encoder: ImageTextEncoder, tmp_path: Path) -> None:
    classifier = ZeroShotClassifier(encoder, ["blue", "red", "green"])
    predictions = classifier.predict(write_colour_images(tmp_path))
    assert [prediction.label for prediction in predictions] == list(COLOURS)
    assert all(len(prediction.scores) == 3 for prediction in predictions)
    assert all(sum(value for _, value in each.scores) == pytest.approx(1) for each in predictions)


def test_an_unreadable_file_keeps_its_position(encoder: ImageTextEncoder, tmp_path: Path) -> None:
    files = write_colour_images(tmp_path)
    files[1].write_bytes(b"no image")
    predictions = ZeroShotClassifier(encoder, list(COLOURS)).predict(files, top=1)
    assert [prediction.label for prediction in predictions] == ["red", "", "blue"]
    assert "not an image" in (predictions[1].error or "")
    assert [len(prediction.scores) for prediction in predictions] == [1, 0, 1]


def test_one_name_is_certain(encoder: ImageTextEncoder, tmp_path: Path) -> None:
    (prediction,) = ZeroShotClassifier(encoder, ["red"]).predict(write_colour_images(tmp_path, ["blue"]))
    assert prediction.probability == pytest.approx(1)


def test_a_class_is_the_direction_of_the_mean_over_its_templates(encoder: ImageTextEncoder) -> None:
    templates = ["a photo of a {}", "a small {}"]
    both = encoder.embed_texts(["a photo of a red", "a small red"])
    found = embed_classes(encoder, ["red", "blue"], templates)
    torch.testing.assert_close(found[0], F.normalize(both.mean(dim=0), dim=0))
    assert found.shape == (2, 3)


def test_probabilities_are_those_of_scaled_cosines(encoder: ImageTextEncoder) -> None:
    classifier = ZeroShotClassifier(encoder, ["red", "blue"], templates=["{}"])
    pixels = torch.randint(256, (3, 3, 16, 24), dtype=torch.uint8)
    cosines = encoder.embed_pixels(pixels) @ encoder.embed_texts(["red", "blue"]).T
    torch.testing.assert_close(classifier.classify(pixels), (20 * cosines).softmax(dim=-1))


def test_a_clip_made_a_classifier_predicts_as_it_does_by_names(encoder: ImageTextEncoder) -> None:
    classifier = ZeroShotClassifier(encoder, ["red", "blue"], templates=["a small {}"])
    pixels = torch.randint(256, (3, 3, 16, 24), dtype=torch.uint8)
    sentences = Sentences(names=["red", "blue"], templates=["a small {}"])
    made, _ = by_names(load_colour_clip(), ["0", "1"], sentences)
    assert made.class_names == ["0", "1"]
    preprocessing = Preprocessing.from_tree(made.preprocessing)
    with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16):
        logits = made.model(preprocessing.normalise(pixels))
    torch.testing.assert_close(logits.softmax(dim=-1), classifier.classify(pixels))


def test_lists_of_templates_have_names() -> None:
    assert read_templates([]) == PLAIN
    assert read_templates(["seven", "a {} indeed"]) == (*NAMED["seven"], "a {} indeed")
    assert all(template.count("{}") == 1 for templates in NAMED.values() for template in templates)


@pytest.mark.parametrize(
    ("ask", "error", "message"),
    [
        *(
            (lambda encoder, template=template: read_templates([template]), ConfigError, message)
            for template, message in (
                ("a photo", "no placeholders for a name"),
                ("a {} of a {}", "2 placeholders for a name"),
                ("a {name}", "no placeholders for a name"),
                ("", "no placeholders for a name"),
            )
        ),
        *(
            (lambda encoder, names=names: check_names(names), ConfigError, message)
            for names, message in (
                ([], "no class was given"),
                (["red", " "], "an empty name"),
                (["a  cat", "a cat"], "'a cat' twice"),
            )
        ),
        (lambda encoder: ZeroShotClassifier(encoder, ["red", "green " * 30]), DataError, "at most 18"),
        (lambda encoder: ImageTextEncoder(load_colour_clip(), batch_size=0), ConfigError, "batch size is 0"),
        (
            lambda encoder: ImageTextEncoder(
                load_colour_clip()._replace(preprocessing={"image_size": [4, 4]})
            ),
            CheckpointError,
            "is a model for classification, not for contrastive. Expected a CLIP",
        ),
    ],
)
def test_templates_names_and_models_that_do_not_fit_are_refused(
    encoder: ImageTextEncoder,
    ask: Callable[[ImageTextEncoder], object],
    error: type[Exception],
    message: str,
) -> None:
    with pytest.raises(error, match=message):
        ask(encoder)


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


def test_other_names_replace_those_of_the_classes(clip: str, image_folder: Path) -> None:
    swapped = evaluate(clip, image_folder, names=["green", "blue", "red"], templates=["plain", "a {}"])
    assert swapped.scores["accuracy"] < 0.5
    assert swapped.class_names == ("blue", "green", "red")
    assert swapped.signature["zero_shot"] == "plain / a {}"
    assert swapped.signature["names"].startswith("given@")


def test_line_signs_of_folders_are_read_as_spaces(tmp_path: Path) -> None:
    for colour in ("blue", "red"):
        write_colour_images(tmp_path / f"a_{colour}_thing", [colour, "green"])
    loaded, classes = load_colour_clip(), open_dataset(tmp_path).class_names
    classifier, _ = by_names(loaded, classes, Sentences())
    spaced, _ = by_names(loaded, classes, Sentences(names=["a blue thing", "a red thing"]))
    lined, _ = by_names(loaded, classes, Sentences(names=["a_blue_thing", "a_red_thing"]))
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
