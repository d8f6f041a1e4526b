from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from making.small_exports import generated, images_for, small_vit
from vitrail.core.errors import ConfigError, DataError
from vitrail.engines.contract import build_engine, find_kind
from vitrail.engines.export.exporting import export_model
from vitrail.engines.export.formats import FORMATS, Inputs, Outputs
from vitrail.engines.export.package import PortSpec
from vitrail.engines.package_engine import PackageEngine

OUTPUTS = {"logits": 3, "boxes": 4}
SIZES = PortSpec(name="sizes", dtype="int64", axes=("batch", 2))


@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
def test_a_model_is_converted_and_computes_the_same(engine: str) -> None:
    pytest.importorskip(engine)
    loaded = small_vit(depth=1)

    built = build_engine(loaded, engine=engine, device="cpu")

    assert (built.name, built.precision) == (engine, "float32")
    for batch in (1, 4):
        images = images_for(loaded, batch)
        (logits,) = built.run((images,))
        with torch.inference_mode():
            torch.testing.assert_close(logits, loaded.model(images), rtol=1e-4, atol=1e-4)
    with pytest.raises(DataError, match="batchx3x24x16"):
        built.run((torch.zeros(1, 3, 16, 24),))


def test_images_of_a_detector_are_brought_to_the_canvas_of_the_export() -> None:
    seen: list[Inputs] = []

    def runner(inputs: Inputs) -> Outputs:
        seen.append(inputs)
        return inputs[0].new_zeros(1, 4, 3), inputs[0].new_zeros(1, 4, 4)

    port = PortSpec(name="images", dtype="float32", axes=("batch", 3, "height", "width"), multiple_of=8)
    outputs = [PortSpec(name=name, dtype="float32", axes=("batch", 4, n)) for name, n in OUTPUTS.items()]
    engine = PackageEngine("openvino", "float32", runner, (port, SIZES), outputs)
    images, sizes = torch.randn(1, 3, 13, 16), torch.tensor([[13, 16]])

    engine.run((images, sizes))

    assert seen[0][0].shape == (1, 3, 16, 16)
    assert torch.equal(seen[0][0][:, :, :13], images)
    assert not seen[0][0][:, :, 13:].any()
    assert torch.equal(seen[0][1], sizes)


def test_what_writes_a_package_is_not_needed_to_run_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxruntime")
    loaded = small_vit(depth=1)
    package = export_model(loaded, tmp_path / "vit", export_format="onnx", samples=generated(loaded))
    for name in ("onnx", "onnxscript"):
        monkeypatch.setitem(sys.modules, name, None)

    (logits,) = build_engine(package, device="cpu").run((images_for(loaded),))

    assert tuple(logits.shape) == (5, 3)
    with pytest.raises(ConfigError, match=r"written with onnx, onnxscript.*onnx, which is not installed"):
        build_engine(loaded, engine="onnxruntime", device="cpu")


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_openvino_runs_without_what_writes_its_packages(
    precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("openvino")
    for name in ("onnx", "onnxscript", "nncf"):
        monkeypatch.setitem(sys.modules, name, None)

    find_kind("openvino").check(precision, torch.device("cpu"))  # type: ignore[arg-type]

    with pytest.raises(ConfigError, match="onnx"):
        FORMATS["openvino"].check(precision)  # type: ignore[arg-type]


def test_outputs_of_other_shapes_than_described_are_refused() -> None:
    ports = [PortSpec(name="images", dtype="float32", axes=("batch", 3, 8, 8))]
    outputs = [PortSpec(name="logits", dtype="float32", axes=("batch", 5))]

    def run(images: Inputs) -> Outputs:
        return (images[0].new_zeros(1, 4),)

    with pytest.raises(ConfigError, match=r"shapes \[\(1, 4\)\].*\[\(1, 5\)\].*Export the model again"):
        PackageEngine("onnxruntime", "float32", run, ports, outputs).run((torch.zeros(1, 3, 8, 8),))
