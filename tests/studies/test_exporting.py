"""The command export: compares on the run's own images, says what it found, refuses what means nothing."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from making.image_folders import write_image_folder
from making.small_exports import load_small
from making.small_runs import write_untrained_run
from vitrail.cli import main
from vitrail.core.errors import ConfigError
from vitrail.engines.export.comparison import generate_samples
from vitrail.engines.export.package import Package
from vitrail.models.checkpoint import LoadedModel
from vitrail.studies import exporting
from vitrail.tasks.classification.opening import open_dataset

pytestmark = pytest.mark.compiled


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return write_image_folder(tmp_path / "photos", per_class=5)


@pytest.fixture
def loaded(photos: Path) -> LoadedModel:
    """A model of three classes, those of the photos."""
    names = list(open_dataset(photos).class_names)
    return load_small("vit_ti16", depth=1, num_classes=len(names))._replace(class_names=names)


@pytest.fixture
def run_folder(photos: Path, loaded: LoadedModel, tmp_path: Path) -> Path:
    """A run directory as training leaves it, of a model that was not trained."""
    return write_untrained_run(tmp_path / "runs", photos, loaded)


def test_a_run_is_compared_on_its_own_test_split(run_folder, photos, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    assert main(["export", "runs/tiny", "--format", "torch"]) == 0

    package = Package.read(tmp_path / "exports" / "tiny-torch")
    num_tested = len(open_dataset(photos).test)
    assert package.comparison.num_scored == num_tested
    assert package.comparison.images == "the test split of photos"
    shown = capsys.readouterr().out
    assert shown.startswith("exports/tiny-torch\n")
    assert f"{num_tested} images of the test split of photos" in shown
    assert "images batch x 3 x 16 x 24" in shown
    assert all(len(line) <= 80 for line in shown.splitlines())


def test_data_that_has_gone_is_replaced_by_generated_images(
    run_folder, photos, monkeypatch, tmp_path, capsys
):
    shutil.rmtree(photos)
    monkeypatch.setattr(exporting, "generate_samples", lambda *given: generate_samples(*given, count=3))

    assert main(["export", str(run_folder), str(tmp_path / "out"), "--format", "torch"]) == 0

    assert Package.read(tmp_path / "out").comparison.images == "3 generated images"
    assert "the data of the run cannot be used" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--format", "onnx", "--quantization", "int8"], "Choose --precision int8"),
        (["--format", "ctranslate2", "--precision", "int8"], "--quantization says how"),
        (["out", "--format", "onnx", "-o", "other"], "unexpected out"),
        (["--format", "tflite"], "tflite"),
    ],
)
def test_options_that_mean_nothing_are_refused(arguments, message, run_folder, capsys):
    assert main(["export", str(run_folder), *arguments]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_a_translator_is_pointed_to_its_own_format(run_folder, monkeypatch):
    from vitrail.tasks.registry import TASKS

    monkeypatch.setattr(exporting, "task_of_model", lambda loaded: TASKS["translation"])

    with pytest.raises(ConfigError, match="--format ctranslate2"):
        exporting.export(run_folder, export_format="onnx")


@pytest.mark.parametrize(
    ("run", "folder"),
    [
        ("runs/photos/", "exports/photos-onnx"),
        ("timm:vit_base_patch16_224.augreg_in1k", "exports/vit_base_patch16_224.augreg_in1k-onnx"),
        ("hf:google/vit-base-patch16-224", "exports/vit-base-patch16-224-onnx"),
    ],
)
def test_an_export_that_nobody_named_is_called_after_the_model(run, folder):
    assert exporting.default_output(run, "onnx", "float32").as_posix() == folder
