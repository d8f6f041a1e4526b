"""Engines timed in turns, in rounds, and what the machine's ceiling is meanwhile.

Other work on the machine slows all that take part in a round. One that fails loses its own place alone.
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

ROUND_S = 0.3  # that an engine's turn is filled with
MOST_PASSES = 20  # of a turn
NUM_PRODUCTS = 6  # of a turn, by all kernels alike; the fastest counts
LIBRARIES = ("torch", "onnxruntime", "openvino")


class Contender(NamedTuple):
    """An engine with one batch size, which takes turns."""

    remote: RemoteCell
    """The engine, which may stand for other batch sizes as well."""
    batch: int
    """Images of one forward pass."""
    title: str
    """What it is called while it is measured."""


class Timed(NamedTuple):
    """What came of the turns of one contender."""

    seconds: tuple[tuple[float, ...], ...]
    """Of each pass of every round; empty where it failed."""
    peak_mib: float
    """Most memory of its process in a pass."""
    reason: str | None
    """Why it failed; None where it did not."""


class Turns(NamedTuple):
    """What came of all rounds."""

    timed: tuple[Timed, ...]
    """In the order of the contenders."""
    ceilings: dict[Precision, list[float]]
    """GFLOP/s of the matrix product of each precision in every round; without those that failed."""


def start_products(
    shape: ProductShape, precisions: Sequence[Precision], stack: ExitStack, *, threads: int
) -> dict[Precision, RemoteCell]:
    """Start what measures the ceiling of each precision that the processor has.

    Args:
        shape: of the matrix product.
        precisions: those that take part.
        stack: ends the processes.
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
    """Give each engine its batches, and let all take their turn in every round, the products first.

    Memory is read when a batch has come and no larger one yet: engines keep what those took.

    Args:
        contenders: who takes turns; smaller batches of an engine are given to it first.
        products: by precision, what measures its ceiling.
        shape: of the products.
        make_batch: makes the images of a pass, by their number.
        rounds: how often all take their turn.
        on_stage: is told what is being done.
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
    """One contender in the course of the rounds."""

    def __init__(self, contender: Contender, make_batch: Callable[[int], Inputs]) -> None:
        self.contender, self.make_batch = contender, make_batch
        self.name = str(contender.batch)
        self.passes, self.peak_mib = 1, 0.0
        self.seconds: list[tuple[float, ...]] = []
        self.reason: str | None = None

    def warm(self) -> None:
        """Give the engine its batch, and see how long a pass takes and how much memory."""
        try:
            (seconds,) = self._time(1)
            self.passes, self.peak_mib = passes_for(seconds), self.contender.remote.peak_mib()
        except CellError as error:
            self.reason = error.reason

    def take_turn(self) -> None:
        """Time the passes of one round; after a failure, do nothing."""
        if self.reason is not None:
            return
        try:
            self.seconds.append(self._time(self.passes))
        except CellError as error:
            self.reason = error.reason

    def finish(self) -> Timed:
        """Return what came of it."""
        return Timed(tuple(self.seconds) if self.reason is None else (), self.peak_mib, self.reason)

    def _time(self, passes: int) -> tuple[float, ...]:
        remote = self.contender.remote
        remote.revive()  # another batch of the same engine may have been its end
        if not remote.holds(self.name):
            remote.hold(self.name, self.make_batch(self.contender.batch))
        return tuple(remote.time(self.name, passes))


def find_versions(libraries: Sequence[str] = LIBRARIES) -> dict[str, str]:
    """Return the versions of those libraries that are installed."""
    found = {}
    for name in libraries:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def passes_for(seconds: float) -> int:
    """Return how many passes fill an engine's turn, from the time that one takes."""
    return min(max(round(ROUND_S / seconds), 1), MOST_PASSES)


def rate_of(product: RemoteCell, shape: ProductShape) -> float:
    """Return the GFLOP/s of a product by its fastest kernel and pass of a turn."""
    return shape.flops / min(product.time("product", NUM_PRODUCTS)) / 1e9
