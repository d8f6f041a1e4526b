"""Interleaved timing of engines, beside the machine's fastest matrix product in each round.

Other load on the machine slows all engines of a round alike. A failing engine does not affect the others. The
product is an upper bound for models made of such products.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
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


class Contender(NamedTuple):
    """An engine with one batch size."""

    remote: RemoteEngine
    """The engine, possibly shared among batch sizes."""
    batch: int
    """Batch size."""
    title: str
    """Name in progress messages."""


class Timed(NamedTuple):
    """The result of one contender."""

    seconds: tuple[tuple[float, ...], ...]
    """Of each pass of every round; empty on failure."""
    peak_mib: float
    """Peak memory of its process in a pass."""
    reason: str | None
    """Why it failed, if it did."""


class Turns(NamedTuple):
    """The results of all rounds."""

    timed: tuple[Timed, ...]
    """In the order of the contenders."""
    ceilings: dict[Precision, list[float]]
    """GFLOP/s of the matrix product by precision and round, without those that failed."""


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

    Args:
        stack: closes the processes.
        threads: of each.

    Raises:
        EngineError: one does not start.
    """
    products = {}
    for precision in precisions:
        if has_product(precision):
            arguments = {"shape": list(shape), "precision": precision}
            remote = RemoteEngine("vitrail.engines.turns:build_product", arguments, threads=threads)
            products[precision] = stack.enter_context(remote)
            remote.hold("product", ())
    return products


def take_turns(
    contenders: Sequence[Contender],
    products: Mapping[Precision, RemoteEngine],
    *,
    shape: ProductShape,
    make_batch: Callable[[int], Inputs],
    rounds: int,
    on_stage: Callable[[str], None] = lambda stage: None,
) -> Turns:
    """Time each engine's passes in every round, after the matrix products.

    Memory is read after a batch and before any larger one, whose memory engines keep.

    Args:
        contenders: an engine's smaller batches come first.
        products: by precision.
        make_batch: makes the images of a pass, by batch size.
        rounds: number of interleaved rounds.
    """
    takers = [_Taker(each, make_batch) for each in contenders]
    for taker in sorted(takers, key=lambda each: each.contender.batch):
        on_stage(f"warming {taker.contender.title}, batch {taker.contender.batch}")
        taker.warm()
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
        for taker in takers:
            taker.take_turn()
    return Turns(tuple(taker.finish() for taker in takers), ceilings)


class _Taker:
    """One contender during the rounds."""

    def __init__(self, contender: Contender, make_batch: Callable[[int], Inputs]) -> None:
        self.contender, self.make_batch = contender, make_batch
        self.name = str(contender.batch)
        self.passes, self.peak_mib = 1, 0.0
        self.seconds: list[tuple[float, ...]] = []
        self.reason: str | None = None

    def warm(self) -> None:
        """Give the engine its batch, and measure the time and memory of a pass."""
        try:
            (seconds,) = self._time(1)
            self.passes, self.peak_mib = passes_for(seconds), self.contender.remote.peak_mib()
        except EngineError as error:
            self.reason = error.reason

    def take_turn(self) -> None:
        """Time the passes of one round; no-op after a failure."""
        if self.reason is not None:
            return
        try:
            self.seconds.append(self._time(self.passes))
        except EngineError as error:
            self.reason = error.reason

    def finish(self) -> Timed:
        return Timed(tuple(self.seconds) if self.reason is None else (), self.peak_mib, self.reason)

    def _time(self, passes: int) -> tuple[float, ...]:
        remote = self.contender.remote
        remote.revive()  # another batch of the same engine may have killed it
        if not remote.holds(self.name):
            remote.hold(self.name, self.make_batch(self.contender.batch))
        return tuple(remote.time(self.name, passes))


def passes_for(seconds: float) -> int:
    """Return how many passes fill an engine's turn."""
    return min(max(round(ROUND_S / seconds), 1), MOST_PASSES)


def find_versions(libraries: Sequence[str] = LIBRARIES) -> dict[str, str]:
    """Return the versions of the installed libraries."""
    found = {}
    for name in libraries:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


class MatrixProduct:
    """A random matrix product as an engine, alternating among torch's kernels for a precision.

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


def build_product(shape: list[int], *, precision: Precision) -> MatrixProduct:
    """Build the matrix product that measures a machine's ceiling."""
    return MatrixProduct(ProductShape(*shape), precision)


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
