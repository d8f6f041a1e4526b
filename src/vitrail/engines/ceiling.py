"""The machine's fastest matrix product, an upper bound for models made of such products."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.engines.contract import Inputs, Outputs
from vitrail.engines.export.package import Precision
from vitrail.engines.quantised import LEVELS, MOST_WEIGHT
from vitrail.train.machine import best_precision

ROWS = 2048  # tokens per batch; more are no faster
USUAL_WIDTH = 1024  # of the weight, for models without a sizeable linear layer


class ProductShape(NamedTuple):
    """The shape of a matrix product."""

    rows: int
    inner: int
    columns: int

    @property
    def flops(self) -> int:
        """Multiplications and additions."""
        return 2 * self.rows * self.inner * self.columns


def shape_for(model: nn.Module) -> ProductShape:
    """Return the largest matrix product of a model's shape: many rows, its largest nearly square weight."""
    weights = [
        tuple(layer.weight.shape)
        for name, layer in model.named_modules()
        if isinstance(layer, nn.Linear) and name.split(".")[0] != "head"
    ]
    columns, inner = max(weights, key=lambda shape: shape[0] * shape[1], default=(USUAL_WIDTH, USUAL_WIDTH))
    return ProductShape(ROWS, max(inner, 256), max(columns, 256))


class MatrixProduct:
    """A random matrix product, alternating among torch's kernels for a precision.

    Args:
        precision: int8 multiplies 0..255 with -127..127 and accumulates in 32 bits.
    """

    def __init__(self, shape: ProductShape, precision: Precision) -> None:
        self.shape, self.name, self.precision = shape, "product", precision
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(shape.rows, shape.inner, generator=generator)
        weight = torch.randn(shape.columns, shape.inner, generator=generator)
        make = {"float32": _float32_kernels, "bfloat16": _bfloat16_kernels, "int8": _int8_kernels}[precision]
        self.kernels = make(x, weight)
        self._runs = 0

    def run(self, inputs: Inputs) -> Outputs:
        kernel = self.kernels[self._runs % len(self.kernels)]
        self._runs += 1
        with torch.inference_mode():
            kernel()
        return ()


def has_product(precision: Precision) -> bool:
    """Return whether this CPU multiplies a precision faster than float32."""
    if precision == "bfloat16":
        return best_precision(torch.device("cpu")) == "bfloat16"
    return precision == "float32" or torch.backends.mkldnn.is_available()


def _float32_kernels(x: Tensor, weight: Tensor) -> list[Callable[[], object]]:
    kernels: list[Callable[[], object]] = [lambda: F.linear(x, weight)]
    if torch.backends.mkldnn.is_available():
        kernels.append(_packed(x, weight))
    return kernels


def _bfloat16_kernels(x: Tensor, weight: Tensor) -> list[Callable[[], object]]:
    return [_packed(x.bfloat16(), weight.bfloat16())]


def _int8_kernels(x: Tensor, weight: Tensor) -> list[Callable[[], object]]:
    levels = (x * 32 + 128).clamp(0, LEVELS).to(torch.uint8)
    rounded = (weight * 32).round().clamp(-MOST_WEIGHT, MOST_WEIGHT).to(torch.int8)
    packed = torch.ops.onednn.qlinear_prepack(rounded, list(x.shape))
    scales, zeros = torch.full((len(weight),), 1 / 32), torch.zeros(len(weight), dtype=torch.int32)
    multiply = torch.ops.onednn.qlinear_pointwise
    rest: tuple[object, ...] = (None, 1.0, 0, torch.float32, "none", [], "")
    return [lambda: multiply(levels, 1 / 32, 128, packed, scales, zeros, *rest)]


def _packed(x: Tensor, weight: Tensor) -> Callable[[], object]:
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, len(x))
    return lambda: torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")
