"""What an engine does not have is named, as far as it says so."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.engines.export.formats import open_onnx, save_onnx, to_onnx, unsupported
from vitrail.engines.export.package import PortSpec
from vitrail.engines.export.tracing import Traced


@pytest.mark.parametrize(
    ("said", "named"),
    [
        ("No ONNX function found for <OpOverload(op='aten.fft_fft2', overload='default')>.", "aten.fft_fft2"),
        (
            "[ONNXRuntimeError] : 9 : NOT_IMPLEMENTED : Could not find an implementation for "
            "Einsum(12) node with name 'node_1'",
            "Einsum",
        ),
        ("Fatal error: No Op registered for GridSample with domain_version of 13", "GridSample"),
    ],
)
def test_an_operation_that_an_engine_names_is_named(said, named):
    assert f"an engine does not support the operation {named}:" in str(
        unsupported("an engine", RuntimeError(said))
    )


def test_the_innermost_cause_counts_and_colours_are_left_out():
    inner = RuntimeError("\x1b[96mCould not find an implementation for Loop(16)\x1b[0m")
    outer = ValueError("the export failed")
    outer.__cause__ = inner

    message = str(unsupported("ONNX", outer))

    assert "operation Loop" in message
    assert "\x1b" not in message


def test_an_engine_that_names_none_is_quoted():
    assert "does not support the model: out of luck" in str(
        unsupported("OpenVINO", RuntimeError("\n out of luck"))
    )


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

    (found,) = open_onnx(tmp_path / "model.onnx")((images,))
    torch.testing.assert_close(found, PaddedMaximum()(images), rtol=0, atol=0)
