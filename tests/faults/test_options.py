"""NaN and infinite numbers are refused as options, as settings and as scores of a model."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from making.saved_vit import save_vit
from vitrail.cli import main

WORDS = ("nan", "inf", "-inf")


@pytest.mark.parametrize("number", WORDS)
@pytest.mark.parametrize(
    "arguments",
    [
        ("predict", "nowhere", "a.png", "--threshold"),
        ("translate", "nowhere", "a.en", "--length-penalty"),
        ("serve", "nowhere", "--max-wait-ms"),
        ("serve", "nowhere", "--timeout"),
        ("serve", "nowhere", "--max-upload-mb"),
    ],
)
def test_options_are_finite(
    arguments: tuple[str, ...], number: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments[:-1], f"{arguments[-1]}={number}"]) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert f'Invalid value "{number}" for {arguments[-1]}' in told
    assert "Must be" in told


@pytest.mark.parametrize("value", ["[" * 100_000, "9" * 5000, "[nan]"])
def test_settings_of_odd_json_are_refused(value: str) -> None:
    assert main(["train", "digits", "--set", f"train.steps={value}", "--dry-run"]) == 2


@pytest.mark.parametrize("number", WORDS)
@pytest.mark.parametrize(
    "setting", ["optim.learning_rate", "optim.weight_decay", "data.test_fraction", "augment.mixup"]
)
def test_settings_are_finite(setting: str, number: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "digits", "--set", f"{setting}={number}", "--dry-run"]) == 2
    assert f"{setting.rpartition('.')[2]} must be" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("sharpness", [float("nan"), float("inf")])
def test_scores_that_are_no_numbers_are_an_error(
    tmp_path: Path, sharpness: float, capsys: pytest.CaptureFixture[str]
) -> None:
    Image.new("RGB", (16, 24)).save(tmp_path / "a.png")
    model = save_vit(tmp_path / "model", sharpness=sharpness)
    assert main(["predict", str(model), str(tmp_path / "a.png")]) == 2
    assert "the model's scores are NaN or infinite" in " ".join(capsys.readouterr().err.split())
