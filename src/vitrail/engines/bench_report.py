"""What ``vitrail bench`` measured, and the figures that follow from the seconds of single passes."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from pydantic import Field

from vitrail.core.config import Config
from vitrail.engines.contract import EngineName
from vitrail.engines.export.package import Precision


class BenchCell(Config):
    """One engine in one precision with one batch size, or why there are no figures of it."""

    engine: EngineName
    """Its name."""
    precision: Precision
    """Of the matrix products."""
    batch: int = Field(ge=1)
    """Images of one forward pass."""
    images_per_s: float = 0.0
    """Median over the rounds; 0 where it failed."""
    p50_ms: float = 0.0
    """Median time of a pass."""
    p99_ms: float = 0.0
    """Time of a pass that 99 of 100 keep within; of few passes, that of the slowest."""
    peak_mib: float = 0.0
    """Most memory of a process that does nothing else, libraries and weights included."""
    ceiling_share: float | None = None
    """Rate of its multiplications over that of the matrix product of its precision, round by round."""
    agrees: bool = False
    """Whether its answers passed the comparison with those of the model in torch."""
    is_kept: bool = True
    """Whether it can be started again: int8 of torch has ranges of images that are not kept."""
    reason: str | None = None
    """Why it has no figures, or why it does not agree."""

    @property
    def ran(self) -> bool:
        """Whether there are figures."""
        return self.images_per_s > 0


class BenchReport(Config):
    """All that was measured in one run."""

    name: str
    """Of the model."""
    size: tuple[int, int]
    """Height and width of the images."""
    gmacs: float
    """Multiplications of one image, each with its addition, in thousands of millions."""
    machine: str
    """The processor and its cores."""
    threads: int
    """How many each engine used."""
    rounds: int
    """Times that all took their turn."""
    product: tuple[int, int, int]
    """Rows, inner and columns of the matrix product."""
    ceilings: dict[str, float]
    """GFLOP/s of the product by precision, the median over the rounds."""
    images: str
    """What the answers were compared on."""
    cells: tuple[BenchCell, ...]
    """In the order in which they were asked for."""
    versions: dict[str, str]
    """Of the libraries."""
    folder: str | None = None
    """Where the choice is stored; None where it is not."""
    unstored: str | None = None
    """Why the choice could not be stored; None where it is, or was not to be."""

    def best(self, batch: int) -> BenchCell | None:
        """Return the fastest cell of a batch size that agrees and is kept, as ``engine="auto"`` does."""
        kept = [cell for cell in self.cells if cell.ran and cell.agrees and cell.is_kept]
        usable = [cell for cell in kept if cell.batch == batch]
        return max(usable, key=lambda cell: cell.images_per_s, default=None)


class Figures(NamedTuple):
    """What follows from the seconds of passes."""

    images_per_s: float
    """Median over the rounds."""
    p50_ms: float
    """Median time of a pass."""
    p99_ms: float
    """Time that 99 of 100 passes keep within."""
    ceiling_share: float | None
    """Rate of multiplications over that of the matrix product, the median over the rounds."""


def summarise(
    rounds: Sequence[Sequence[float]], *, batch: int, gflops: float, ceilings: Sequence[float] | None
) -> Figures:
    """Return the figures of an engine.

    Args:
        rounds: seconds of each pass of every round.
        batch: images of a pass.
        gflops: multiplications and additions of one image, in thousands of millions.
        ceilings: GFLOP/s of the matrix product in every round; None where there is none.

    Example:
        >>> summarise([[0.5, 0.3], [0.4, 0.4]], batch=2, gflops=10, ceilings=[100, 200])
        Figures(images_per_s=5.0, p50_ms=400.0, p99_ms=500.0, ceiling_share=0.375)
    """
    rates = [batch * len(passes) / sum(passes) for passes in rounds]
    share = None
    if ceilings:
        # Round by round: other work on the machine slows both.
        share = statistics.median(
            rate * gflops / ceiling for rate, ceiling in zip(rates, ceilings, strict=True)
        )
    every = sorted(seconds for passes in rounds for seconds in passes)
    slowest = every[math.ceil(0.99 * len(every)) - 1]
    return Figures(statistics.median(rates), 1000 * statistics.median(every), 1000 * slowest, share)
