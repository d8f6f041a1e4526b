"""Calibration of a saved model on a folder of images, and the command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from making.saved_vit import save_vit
from vitrail.cli import main
from vitrail.core.errors import ConfigError
from vitrail.data.dataset import ImageSplit
from vitrail.data.preprocessing import Preprocessing
from vitrail.engines.loading import load
from vitrail.studies.calibrating import calibrate
from vitrail.tasks.classification.opening import open_dataset
from vitrail.tasks.classification.scores import calibration_scores, fit_temperature
from vitrail.tasks.evaluating import evaluate


def test_the_scores_are_those_of_the_models_logits(tmp_path: Path, divided_folder: Path) -> None:
    saved = save_vit(tmp_path / "model", sharpness=40.0)
    found = calibrate(saved, divided_folder, fit_on="train")

    preprocessing, model = Preprocessing(image_size=(12, 8)), load(saved)
    dataset = open_dataset(divided_folder)

    def logits_of(split: ImageSplit) -> tuple[torch.Tensor, torch.Tensor]:
        pixels = torch.stack([preprocessing.read(image) for image in split.images])
        with torch.inference_mode():
            return model(preprocessing.normalise(pixels)), torch.from_numpy(split.labels)

    expected = calibration_scores(*logits_of(dataset.test))
    assert found.before.nll == pytest.approx(expected.nll, rel=1e-5)
    assert found.before.brier == pytest.approx(expected.brier, rel=1e-5)
    scores = evaluate(saved, divided_folder).scores
    assert found.before.calibration_error == pytest.approx(scores["calibration_error"], abs=1e-5)
    assert found.before.accuracy == found.after.accuracy == scores["accuracy"]
    assert "samples:6" in "|".join(f"{name}:{value}" for name, value in found.signature.items())
    assert found.temperature == pytest.approx(fit_temperature(*logits_of(dataset.train)), rel=1e-3)


def test_the_command_shows_80_columns_and_writes_page_and_picture(
    tmp_path: Path, divided_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved, page = save_vit(tmp_path / "model"), tmp_path / "page.html"
    arguments = ["calibrate", str(saved), str(divided_folder), "--fit-on", "train"]

    assert main([*arguments, "-o", str(page)]) == 0
    shown = capsys.readouterr().out
    assert main([*arguments, "-o", str(page.with_suffix(".png")), "--json"]) == 0
    tree = json.loads(capsys.readouterr().out)

    assert "expected calibration error" in shown
    assert max(len(line) for line in shown.splitlines() if line != str(page)) <= 80
    assert page.read_text().count("<svg") == 2
    before, after = (tree[name]["calibration_error"] for name in ("before", "after"))
    assert "confident: confidence " in page.read_text()
    assert f"the expected calibration error from {before:.1%} to {after:.1%}." in page.read_text()
    assert page.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    assert tree["before"]["accuracy"] == tree["after"]["accuracy"]


def test_one_split_for_both_is_refused(tmp_path: Path, divided_folder: Path) -> None:
    saved = save_vit(tmp_path / "model")
    with pytest.raises(ConfigError, match="same split"):
        calibrate(saved, divided_folder, split="validation")
    assert main(["calibrate", str(saved), str(divided_folder), "-o", "page.txt"]) == 2
