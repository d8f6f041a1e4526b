"""A program of torch.export is read only where its origin is trusted: reading it can run code."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from making.deploy_models import small_detr, small_vit
from making.small_exports import generated
from vitrail.cli import main
from vitrail.core.errors import ConfigError
from vitrail.engines.export.exporting import export_model
from vitrail.engines.export.package import Comparison, Package, digest_files
from vitrail.models.checkpoint import LoadedModel
from vitrail.serve import ServeSettings, serve
from vitrail.tasks.classification.predictor import Predictor
from vitrail.tasks.detection.predictor import Detector
from vitrail.tasks.serving import EngineChoice, open_servable


class CodeRanError(Exception):
    """Stands for what a file could do."""


@pytest.fixture
def _dangerous(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(path: Path) -> None:
        raise CodeRanError

    monkeypatch.setattr(torch.export, "load", load)


def write_package(folder: Path, loaded: LoadedModel, kind: str) -> Path:
    """Write the description of a package beside a file of unknown content."""
    folder.mkdir()
    (folder / "model.pt2").write_bytes(b"anything")
    Package(
        task=kind,
        format="torch",
        precision="float32",
        model_settings=loaded.model_settings,
        preprocessing=loaded.preprocessing,
        class_names=tuple(loaded.class_names),
        about={},
        inputs=(),
        outputs=(),
        comparison=Comparison(
            images="none",
            num_images=0,
            largest_logit_difference=0,
            mean_logit_difference=0,
            top1_agreement=1,
        ),
        tolerance=1,
        files=digest_files(folder),
    ).write(folder)
    return folder


def open_served(folder: Path, *, trust: bool = False) -> None:
    open_servable(folder, EngineChoice(trust=trust))


@pytest.mark.usefixtures("_dangerous")
@pytest.mark.parametrize(
    ("opener", "kind"),
    [
        (Predictor, "classification"),
        (Detector, "detection"),
        (open_served, "classification"),
        (open_served, "detection"),
    ],
)
def test_a_program_is_read_only_where_it_is_trusted(
    opener: Callable[..., Any], kind: str, tmp_path: Path
) -> None:
    folder = write_package(
        tmp_path / "model", small_vit() if kind == "classification" else small_detr(), kind
    )

    with pytest.raises(ConfigError, match=r"can run code.*Expected your word.*--trust.*onnx or openvino"):
        opener(folder)
    with pytest.raises(CodeRanError):
        opener(folder, trust=True)


@pytest.mark.usefixtures("_dangerous")
def test_a_server_reads_no_program_by_itself(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--trust"):
        serve([write_package(tmp_path / "model", small_vit(), "classification")], ServeSettings(port=0))


@pytest.mark.compiled
def test_the_command_takes_a_program_that_is_trusted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, picture = tmp_path / "vit", tmp_path / "picture.png"
    export_model(small_vit(), folder, export_format="torch", samples=generated(small_vit()))
    Image.new("RGB", (16, 24)).save(picture)

    assert main(["predict", str(folder), str(picture)]) == 2
    assert "--trust" in capsys.readouterr().err
    assert main(["predict", str(folder), str(picture), "--trust"]) == 0
