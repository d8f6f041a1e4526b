"""Robustness of a saved model on a folder of images, and the command."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

from making.benchmark_folders import write_imagenet
from making.saved_vit import save_vit
from vitrail.cli import main
from vitrail.core.errors import ConfigError
from vitrail.data.corruptions import CORRUPTIONS, CorruptedSource, corrupt
from vitrail.data.preprocessing import Preprocessing
from vitrail.data.source import ImageSource
from vitrail.engines.loading import load
from vitrail.studies.robustness import ReferenceErrors, measure_robustness, summarise
from vitrail.tasks.classification.opening import open_dataset
from vitrail.tasks.evaluating import evaluate


def test_errors_are_those_of_the_model_on_corrupted_pixels(tmp_path: Path, divided_folder: Path) -> None:
    saved = save_vit(tmp_path / "model", sharpness=40.0)
    found, examples = measure_robustness(
        saved, divided_folder, corruptions=("contrast", "impulse_noise"), severities=(5, 1)
    )
    assert list(examples) == ["without", "contrast", "impulse_noise"]

    preprocessing, model = Preprocessing(image_size=(12, 8)), load(saved)
    split = open_dataset(divided_folder).test
    wrong = 0
    with torch.inference_mode():
        for index, (image, label) in enumerate(zip(split.images, split.labels, strict=True)):
            pixels = corrupt(preprocessing.read(image), CORRUPTIONS["impulse_noise"], 5, seed=index)
            wrong += int(model(preprocessing.normalise(pixels[None])).argmax()) != label
    assert found.corruptions[1].errors[5] == pytest.approx(wrong / 6)
    assert list(found.corruptions[0].errors) == [1, 5]
    assert found.clean == pytest.approx(1 - evaluate(saved, divided_folder).scores["accuracy"])
    assert "as published for 32 px" in found.signature["corruptions"]


def test_a_model_against_itself_has_a_ratio_of_one(tmp_path: Path, divided_folder: Path) -> None:
    saved = save_vit(tmp_path / "model")
    arguments = {"corruptions": ("fog",), "severities": (2,), "split": "train", "num_images": 9}
    found, _ = measure_robustness(saved, divided_folder, reference=saved, **arguments)
    assert found.reference == "model"
    assert found.mean_corruption_error == pytest.approx(1)
    assert found.signature["samples"] == "9 with seed 0"


def test_a_sample_is_damaged_alike_however_often_it_is_loaded(divided_folder: Path) -> None:
    images = ImageSource(open_dataset(divided_folder).test, Preprocessing(image_size=(12, 8)), cache=True)
    damaged = CorruptedSource(images, CORRUPTIONS["snow"], 3)
    assert len(damaged) == 6
    assert torch.equal(damaged.load(4, None).image, damaged.load(4, None).image)
    assert not torch.equal(damaged.load(4, None).image, images.load(4, None).image)


def test_the_command_shows_80_columns_and_writes_page_and_picture(
    tmp_path: Path, divided_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved, page = save_vit(tmp_path / "model"), tmp_path / "page.html"
    arguments = ["robustness", str(saved), str(divided_folder), "--corruptions", "fog,pixelate"]

    assert main([*arguments, "-o", str(page), "--reference", str(saved)]) == 0
    shown = capsys.readouterr().out
    small = [*arguments, "--severities", "2", "--images", "3"]
    assert main([*small, "-o", str(page.with_suffix(".png")), "--json"]) == 0
    tree = json.loads(capsys.readouterr().out)

    assert "rel. CE" in shown
    assert max(len(line) for line in shown.splitlines() if line != str(page)) <= 80
    assert page.read_text().count("<svg") == 2
    assert re.search(
        r"<li>The error is [\d.]+ % on average under corruptions, and [\d.]+ % without \(95 % interval",
        page.read_text(),
    )
    assert page.read_text().count("<img") == 3
    assert page.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    assert [row["name"] for row in tree["corruptions"]] == ["fog", "pixelate"]


def test_alexnets_errors_divide_those_on_the_test_of_imagenet_alone(
    tmp_path: Path, divided_folder: Path
) -> None:
    root = write_imagenet(tmp_path / "imagenet", {1: 970, 2: 230, 5: 57})
    saved = save_vit(tmp_path / "model", class_names=[f"thing {number}" for number in range(1000)])
    asked = {"reference": "alexnet", "corruptions": ("brightness",), "num_images": 2}

    found, _ = measure_robustness(saved, f"imagenet:{root}", **asked)
    assert found.reference == "AlexNet"
    assert found.mean_corruption_error == pytest.approx(found.mean_error / 0.564592)
    assert found.signature["incomplete"] == "2 of 50000 images"
    for source, changes in (
        (str(root), {}),
        (divided_folder, {}),
        (f"imagenet:{root}", {"split": "train"}),
        (f"imagenet:{root}", {"severities": (1,)}),
    ):
        with pytest.raises(ConfigError, match="AlexNet's published errors"):
            measure_robustness(saved, source, **asked, **changes)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"corruptions": ("fogg",)}, "fogg"),
        ({"severities": (0, 1)}, "severities 0, 1"),
        ({"reference": "alexnet"}, "3 classes"),
        ({"split": "tests"}, "tests"),
    ],
)
def test_what_cannot_be_measured_is_refused(tmp_path: Path, divided_folder: Path, changes, said: str) -> None:
    saved = save_vit(tmp_path / "model")
    with pytest.raises(ConfigError, match=said):
        measure_robustness(saved, divided_folder, **({"corruptions": ("fog",)} | changes))


ERRORS = {"fog": {1: 0.2, 2: 0.4}, "contrast": {1: 0.3, 2: 0.7}}


def test_ratios_are_those_of_the_papers_equations() -> None:
    reference = ReferenceErrors("other", 0.2, {"fog": 0.6, "contrast": 0.4})
    found = summarise(0.1, ERRORS, num_images=40, reference=reference, signature={})

    fog, contrast = found.corruptions
    assert fog.mean == pytest.approx(0.3)
    assert fog.relative == pytest.approx(0.2)
    assert fog.corruption_error == pytest.approx(0.6 / 1.2)
    assert fog.relative_corruption_error == pytest.approx((0.1 + 0.3) / (0.4 + 0.4))
    assert contrast.corruption_error == pytest.approx(1.25)
    assert found.mean_error == pytest.approx(0.4)
    assert found.mean_corruption_error == pytest.approx((0.5 + 1.25) / 2)
    assert found.relative_mean_corruption_error == pytest.approx((0.5 + 0.4 / 0.2) / 2)


def test_a_model_is_as_robust_as_itself() -> None:
    first = summarise(0.1, ERRORS, num_images=40, reference=None, signature={})
    again = summarise(
        0.1,
        ERRORS,
        num_images=40,
        reference=ReferenceErrors("itself", 0.1, {row.name: row.mean for row in first.corruptions}),
        signature={},
    )

    assert first.mean_corruption_error is None
    assert again.mean_corruption_error == pytest.approx(1)
    assert again.relative_mean_corruption_error == pytest.approx(1)


def test_a_reference_that_a_corruption_does_not_hurt_gives_no_relative_mean() -> None:
    reference = ReferenceErrors("other", 0.2, {"fog": 0.2, "contrast": 0.4})
    found = summarise(0.1, ERRORS, num_images=40, reference=reference, signature={})
    assert found.corruptions[0].relative_corruption_error is None
    assert found.relative_mean_corruption_error is None
    assert found.mean_corruption_error is not None
