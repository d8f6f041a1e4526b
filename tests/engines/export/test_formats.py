"""Unsupported operations are named; programs of torch.export, which can hold code, need trust."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from making.small_exports import generated, small_detr, small_vit, write_package
from vitrail.cli import main
from vitrail.core.errors import ConfigError
from vitrail.engines.export.exporting import export_model
from vitrail.engines.export.formats import FORMATS, save_onnx, to_onnx, unsupported
from vitrail.engines.export.package import PortSpec
from vitrail.engines.export.tracing import Traced
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
    loaded = small_vit() if kind == "classification" else small_detr()
    folder = write_package(tmp_path / "model", loaded, "torch").folder

    with pytest.raises(ConfigError, match=r"can run code.*Expected your word.*--trust.*onnx or openvino"):
        opener(folder)
    with pytest.raises(CodeRanError):
        opener(folder, trust=True)


@pytest.mark.usefixtures("_dangerous")
def test_a_server_reads_no_program_by_itself(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--trust"):
        serve([write_package(tmp_path / "model", small_vit(), "torch").folder], ServeSettings(port=0))


@pytest.mark.compiled
def test_the_command_takes_a_program_that_is_trusted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, picture = tmp_path / "vit", tmp_path / "picture.png"
    loaded = small_vit(depth=1)
    export_model(loaded, folder, export_format="torch", samples=generated(loaded))
    Image.new("RGB", (16, 24)).save(picture)

    assert main(["predict", str(folder), str(picture)]) == 2
    assert "--trust" in capsys.readouterr().err
    assert main(["predict", str(folder), str(picture), "--trust"]) == 0


@pytest.mark.parametrize(
    ("said", "named"),
    [
        (
            "No ONNX function found for <OpOverload(op='aten.fft_fft2', overload='default')>.",
            "the operation aten.fft_fft2",
        ),
        (
            "[ONNXRuntimeError] : 9 : NOT_IMPLEMENTED : Could not find an implementation for "
            "Einsum(12) node with name 'node_1'",
            "the operation Einsum",
        ),
        (
            "Fatal error: No Op registered for GridSample with domain_version of 13",
            "the operation GridSample",
        ),
        ("\n out of luck", "the model: out of luck"),
    ],
)
def test_what_an_engine_does_not_support_is_named_or_quoted(said, named):
    error = unsupported("an engine", RuntimeError(said))

    assert f"an engine does not support {named}" in str(error)


def test_the_innermost_cause_counts_and_colours_are_left_out():
    inner = RuntimeError("\x1b[96mCould not find an implementation for Loop(16)\x1b[0m")
    outer = ValueError("the export failed")
    outer.__cause__ = inner

    message = str(unsupported("ONNX", outer))

    assert "operation Loop" in message
    assert "\x1b" not in message


class PaddedMaximum(nn.Module):
    """Takes the maximum over zeros beside the image, too."""

    def forward(self, images: Tensor) -> Tensor:
        return F.max_pool2d(F.pad(images, (1, 1, 1, 1)), kernel_size=3, stride=2)


@pytest.mark.compiled
def test_zeros_beside_a_map_count_in_a_maximum(tmp_path: Path):
    images = -1 - torch.rand(2, 3, 7, 5)
    program = torch.export.export(PaddedMaximum(), (images,))
    images_port = PortSpec(name="images", dtype="float32", axes=tuple(images.shape))
    maxima_port = PortSpec(name="maxima", dtype="float32", axes=(2, 3, 4, 3))

    save_onnx(to_onnx(Traced(program, (images_port,), (maxima_port,))), tmp_path / "model.onnx")

    (found,) = FORMATS["onnx"].open(tmp_path, "float32")((images,))
    torch.testing.assert_close(found, PaddedMaximum()(images), rtol=0, atol=0)
