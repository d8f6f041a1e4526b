"""Interleaved timing of engines, with the machine's ceiling in each round.

Other load on the machine slows all engines of a round alike. A failing engine does not affect the others.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import NamedTuple

from vitrail.engines.ceiling import ProductShape, has_product
from vitrail.engines.contract import Inputs
from vitrail.engines.export.package import Precision
from vitrail.engines.remote import CellError, RemoteCell

CELLS = "vitrail.engines.cells"  # what processes build

ROUND_S = 0.3  # of an engine's turn
MOST_PASSES = 20  # per turn
NUM_PRODUCTS = 6  # per turn, over all kernels; the fastest counts
LIBRARIES = ("torch", "onnxruntime", "openvino")


class Contender(NamedTuple):
    """An engine with one batch size."""

    remote: RemoteCell
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


def start_products(
    shape: ProductShape, precisions: Sequence[Precision], stack: ExitStack, *, threads: int
) -> dict[Precision, RemoteCell]:
    """Start the matrix products of each precision that the CPU supports.

    Args:
        stack: closes the processes.
        threads: of each.

    Raises:
        CellError: one does not start.
    """
    products = {}
    for precision in precisions:
        if has_product(precision):
            arguments = {"shape": list(shape), "precision": precision}
            remote = RemoteCell(f"{CELLS}:build_product", arguments, threads=threads)
            products[precision] = stack.enter_context(remote)
            remote.hold("product", ())
    return products


def take_turns(
    contenders: Sequence[Contender],
    products: Mapping[Precision, RemoteCell],
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
                ceilings[precision].append(rate_of(products[precision], shape))
            except CellError:
                del ceilings[precision]
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
        except CellError as error:
            self.reason = error.reason

    def take_turn(self) -> None:
        """Time the passes of one round; no-op after a failure."""
        if self.reason is not None:
            return
        try:
            self.seconds.append(self._time(self.passes))
        except CellError as error:
            self.reason = error.reason

    def finish(self) -> Timed:
        return Timed(tuple(self.seconds) if self.reason is None else (), self.peak_mib, self.reason)

    def _time(self, passes: int) -> tuple[float, ...]:
        remote = self.contender.remote
        remote.revive()  # another batch of the same engine may have killed it
        if not remote.holds(self.name):
            remote.hold(self.name, self.make_batch(self.contender.batch))
        return tuple(remote.time(self.name, passes))


def find_versions(libraries: Sequence[str] = LIBRARIES) -> dict[str, str]:
    """Return the versions of the installed libraries."""
    found = {}
    for name in libraries:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def passes_for(seconds: float) -> int:
    """Return how many passes fill an engine's turn."""
    return min(max(round(ROUND_S / seconds), 1), MOST_PASSES)


def rate_of(product: RemoteCell, shape: ProductShape) -> float:
    """Return the GFLOP/s of a product by its fastest kernel and pass of a turn."""
    return shape.flops / min(product.time("product", NUM_PRODUCTS)) / 1e9
