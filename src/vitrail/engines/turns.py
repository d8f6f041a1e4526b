"""Interleaved timing of engines, beside the machine's fastest matrix product in each round.

Other load on the machine slows all engines of a round alike. A failing engine does not affect the others. The
product is an upper bound for models made of such products.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.engines.contract import Inputs, Outputs
from vitrail.engines.export.package import Precision
from vitrail.engines.quantised import LEVELS, MOST_WEIGHT
from vitrail.engines.remote import EngineError, RemoteEngine
from vitrail.train.machine import best_precision

ROUND_S = 0.3  # of an engine's turn
MOST_PASSES = 20  # per turn
NUM_PRODUCTS = 6  # per turn, over all kernels; the fastest counts
LIBRARIES = ("torch", "onnxruntime", "openvino")
ROWS = 2048  # tokens per batch; more are no faster
USUAL_WIDTH = 1024  # of the weight, for models without a sizeable linear layer


class Contender:
    """An engine with one batch size, and its measurements.

    Args:
        remote: the engine, possibly shared among batch sizes.
    """

    def __init__(self, remote: RemoteEngine, batch: int, title: str) -> None:
        self.remote, self.batch, self.title = remote, batch, title
        self.seconds: list[list[float]] = []
        """Of each pass of every round; empty on failure."""
        self.peak_mib = 0.0
        """Peak memory of its process in a pass."""
        self.reason: str | None = None
        """Why it failed, if it did."""
        self._passes = 1

    def warm(self, make_batch: Callable[[int], Inputs]) -> None:
        """Give the engine its batch, and measure the time and memory of a pass."""
        try:
            (seconds,) = self._time(make_batch)
            self._passes, self.peak_mib = passes_for(seconds), self.remote.peak_mib()
        except EngineError as error:
            self.reason = error.reason

    def take_turn(self, make_batch: Callable[[int], Inputs]) -> None:
        """Time the passes of one round; no-op after a failure."""
        if self.reason is not None:
            return
        try:
            self.seconds.append(self._time(make_batch))
        except EngineError as error:
            self.reason, self.seconds = error.reason, []

    def _time(self, make_batch: Callable[[int], Inputs]) -> list[float]:
        self.remote.revive()  # another batch of the same engine may have killed it
        name = str(self.batch)
        self.remote.hold(name, lambda: make_batch(self.batch))
        return self.remote.time(name, self._passes)


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


def start_products(
    shape: ProductShape, precisions: Sequence[Precision], stack: ExitStack, *, threads: int
) -> dict[Precision, RemoteEngine]:
    """Start the matrix products of each precision that the CPU supports.

    Raises:
        EngineError: one does not start.
    """
    products = {}
    for precision in precisions:
        if has_product(precision):
            arguments = {"shape": list(shape), "precision": precision}
            remote = RemoteEngine("vitrail.engines.turns:MatrixProduct", arguments, threads=threads)
            products[precision] = stack.enter_context(remote)
            remote.hold("product", lambda: ())
    return products


def take_turns(
    contenders: Sequence[Contender],
    products: Mapping[Precision, RemoteEngine],
    *,
    shape: ProductShape,
    make_batch: Callable[[int], Inputs],
    rounds: int,
    on_stage: Callable[[str], None] = lambda stage: None,
) -> dict[Precision, list[float]]:
    """Time each engine's passes in every round, after the matrix products.

    Memory is read after a batch and before any larger one, whose memory engines keep.

    Args:
        contenders: an engine's smaller batches come first.

    Returns:
        : GFLOP/s of the matrix product by precision and round, without those that failed.
    """
    for contender in sorted(contenders, key=lambda each: each.batch):
        on_stage(f"warming {contender.title}, batch {contender.batch}")
        contender.warm(make_batch)
    ceilings: dict[Precision, list[float]] = {precision: [] for precision in products}
    for number in range(rounds):
        on_stage(f"round {number + 1} of {rounds}")
        for precision in list(ceilings):
            try:
                seconds = min(products[precision].time("product", NUM_PRODUCTS))
            except EngineError:
                del ceilings[precision]
            else:
                ceilings[precision].append(shape.flops / seconds / 1e9)
        for contender in contenders:
            contender.take_turn(make_batch)
    return ceilings


def passes_for(seconds: float) -> int:
    """Return how many passes fill an engine's turn."""
    return min(max(round(ROUND_S / seconds), 1), MOST_PASSES)


def find_versions(libraries: Sequence[str] = LIBRARIES) -> dict[str, str]:
    """Return the versions of the installed libraries."""
    found = {}
    for name in libraries:
        with suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


class MatrixProduct:
    """A random matrix product as an engine, alternating among torch's kernels for a precision.

    Args:
        precision: int8 multiplies 0..255 with -127..127 and accumulates in 32 bits.
    """

    def __init__(self, shape: Sequence[int], precision: Precision) -> None:
        rows, inner, columns = shape
        generator = torch.Generator().manual_seed(0)
        x, weight = (torch.randn(count, inner, generator=generator) for count in (rows, columns))
        if precision == "int8":
            self.kernels = [_int8_product(x, weight)]
        elif precision == "bfloat16":
            self.kernels = [_packed(x.bfloat16(), weight.bfloat16())]
        else:
            packed = [_packed(x, weight)] if torch.backends.mkldnn.is_available() else []
            self.kernels = [lambda: F.linear(x, weight), *packed]
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


def _int8_product(x: Tensor, weight: Tensor) -> Callable[[], object]:
    levels = (x * 32 + 128).clamp(0, LEVELS).to(torch.uint8)
    rounded = (weight * 32).round().clamp(-MOST_WEIGHT, MOST_WEIGHT).to(torch.int8)
    packed = torch.ops.onednn.qlinear_prepack(rounded, list(x.shape))
    scales, zeros = torch.full((len(weight),), 1 / 32), torch.zeros(len(weight), dtype=torch.int32)
    multiply = torch.ops.onednn.qlinear_pointwise
    rest: tuple[object, ...] = (None, 1.0, 0, torch.float32, "none", [], "")
    return lambda: multiply(levels, 1 / 32, 128, packed, scales, zeros, *rest)


def _packed(x: Tensor, weight: Tensor) -> Callable[[], object]:
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, len(x))
    return lambda: torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")
