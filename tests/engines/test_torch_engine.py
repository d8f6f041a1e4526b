from __future__ import annotations

import shutil

import pytest
import torch
from torch import nn
from torch._inductor.utils import run_and_get_code

from making.small_exports import images_for, small_detr, small_vit
from vitrail.engines.contract import Engine, build_engine
from vitrail.engines.torch_engine import Compiled
from vitrail.train.machine import best_precision

CPU = torch.device("cpu")
needs_bfloat16 = pytest.mark.skipif(best_precision(CPU) != "bfloat16", reason="no bfloat16 in hardware")


def test_torch_computes_what_the_model_does() -> None:
    loaded = small_vit()
    images = images_for(loaded)

    engine = build_engine(loaded, device="cpu")

    assert isinstance(engine, Engine)
    assert (engine.name, engine.precision) == ("torch", "float32")
    (logits,) = engine.run((images,))
    with torch.inference_mode():
        torch.testing.assert_close(logits, loaded.model(images))


@needs_bfloat16
def test_bfloat16_comes_close_and_returns_float32() -> None:
    loaded = small_vit()
    images = images_for(loaded)

    (logits,) = build_engine(loaded, precision="bfloat16", device="cpu").run((images,))

    with torch.inference_mode():
        expected = loaded.model(images)
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits, expected, rtol=0, atol=0.05 * float(expected.abs().max()))
    assert next(loaded.model.parameters()).dtype == torch.float32


def test_int8_takes_its_ranges_from_images() -> None:
    loaded = small_vit()
    images = images_for(loaded)

    engine = build_engine(loaded, precision="int8", device="cpu", calibration=[(images,)])

    with torch.inference_mode():
        expected = loaded.model(images)
    (logits,) = engine.run((images,))
    assert (logits - expected).norm() < 0.1 * expected.norm()
    assert not torch.equal(logits, expected)


@pytest.mark.parametrize("precision", ["float32", pytest.param("bfloat16", marks=needs_bfloat16)])
def test_a_detector_returns_logits_and_boxes(precision: str) -> None:
    loaded = small_detr()
    images, sizes = torch.randn(2, 3, 48, 64), torch.tensor([[48, 64], [40, 50]])

    logits, boxes = build_engine(loaded, precision=precision, device="cpu").run((images, sizes))

    with torch.inference_mode():
        expected = loaded.model(images, sizes)
    tolerance = 1e-4 if precision == "float32" else 0.1
    torch.testing.assert_close(logits, expected.logits, rtol=0, atol=tolerance)
    torch.testing.assert_close(boxes, expected.boxes, rtol=0, atol=tolerance)


@pytest.mark.compiled
@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
def test_a_compiled_model_computes_the_same_for_any_batch() -> None:
    loaded = small_vit(depth=1)
    engine = build_engine(loaded, engine="compiled", device="cpu")

    for batch in (2, 5):
        images = images_for(loaded, batch)
        (logits,) = engine.run((images,))
        with torch.inference_mode():
            torch.testing.assert_close(logits, loaded.model(images))


@pytest.mark.compiled
@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
def test_the_compiler_takes_onednn_and_the_precision_is_left_as_it_was() -> None:
    compiled = Compiled(nn.Sequential(nn.Linear(32, 64), nn.ReLU()).eval(), CPU)
    products = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before = products.fp32_precision

    with torch.no_grad():
        _, code = run_and_get_code(compiled, torch.randn(7, 32))

    assert "mkldnn._linear_pointwise" in "".join(code)
    assert products.fp32_precision == before
