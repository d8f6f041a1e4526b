"""The results of ``vitrail bench``, from the seconds of single passes."""

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
    """Results of one engine, precision and batch size, or the reason for having none."""

    engine: EngineName
    precision: Precision
    """Of the matrix products."""
    batch: int = Field(ge=1)
    """Batch size."""
    images_per_s: float = 0.0
    """Median over the rounds; 0 on failure."""
    p50_ms: float = 0.0
    """Median time of a pass."""
    p99_ms: float = 0.0
    """99th percentile of a pass; the slowest of few."""
    peak_mib: float = 0.0
    """Peak memory of the process, including libraries and weights."""
    ceiling_share: float | None = None
    """Fraction of the matrix product's rate in its precision, round by round."""
    agrees: bool = False
    """Whether its outputs agree with the torch model's."""
    is_kept: bool = True
    """Whether it can be started again: the calibration of torch int8 is not stored."""
    reason: str | None = None
    """Why it has no figures, or does not agree."""

    @property
    def ran(self) -> bool:
        """Whether there are figures."""
        return self.images_per_s > 0


class BenchReport(Config):
    """All results of one benchmark."""

    name: str
    size: tuple[int, int]
    """Image height and width."""
    gmacs: float
    """10^9 multiply-accumulates per image."""
    machine: str
    """CPU model and cores."""
    threads: int
    """Per engine."""
    rounds: int
    """Number of interleaved timing rounds."""
    product: tuple[int, int, int]
    """Rows, inner and columns of the matrix product."""
    ceilings: dict[str, float]
    """Median GFLOP/s of the matrix product by precision."""
    images: str
    """The images that outputs were compared on."""
    cells: tuple[BenchCell, ...]
    """In the requested order."""
    versions: dict[str, str]
    """Of the libraries."""
    folder: str | None = None
    """Where the results are stored, if they are."""
    unstored: str | None = None
    """Why the results could not be stored."""

    def best(self, batch: int) -> BenchCell | None:
        """Return the fastest kept cell of a batch size that agrees, like ``engine="auto"``."""
        kept = [cell for cell in self.cells if cell.ran and cell.agrees and cell.is_kept]
        usable = [cell for cell in kept if cell.batch == batch]
        return max(usable, key=lambda cell: cell.images_per_s, default=None)


class Figures(NamedTuple):
    """Figures from the seconds of passes."""

    images_per_s: float
    """Median over the rounds."""
    p50_ms: float
    """Median time of a pass."""
    p99_ms: float
    """99th percentile of a pass."""
    ceiling_share: float | None
    """Median fraction of the matrix product's rate."""


def summarise(
    rounds: Sequence[Sequence[float]], *, batch: int, gflops: float, ceilings: Sequence[float] | None
) -> Figures:
    """Summarise the passes of an engine.

    Args:
        rounds: seconds of each pass of every round.
        batch: images per pass.
        gflops: of one image, counting multiplications and additions.
        ceilings: GFLOP/s of the matrix product in every round, if measured.

    Example:
        >>> summarise([[0.5, 0.3], [0.4, 0.4]], batch=2, gflops=10, ceilings=[100, 200])
        Figures(images_per_s=5.0, p50_ms=400.0, p99_ms=500.0, ceiling_share=0.375)
    """
    rates = [batch * len(passes) / sum(passes) for passes in rounds]
    share = None
    if ceilings:
        # Round by round: other load on the machine slows both.
        share = statistics.median(
            rate * gflops / ceiling for rate, ceiling in zip(rates, ceilings, strict=True)
        )
    every = sorted(seconds for passes in rounds for seconds in passes)
    slowest = every[math.ceil(0.99 * len(every)) - 1]
    return Figures(statistics.median(rates), 1000 * statistics.median(every), 1000 * slowest, share)
