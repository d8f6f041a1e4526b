"""Benchmarks with published scores: where they come from, and how they are scored.

Each file of this folder defines ``BENCHMARKS``, which registers them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Literal, NamedTuple

from vitrail.core.registry import Registry

Metric = Literal["accuracy", "mean_per_class_accuracy", "real_accuracy"]

METRIC_TEXTS: dict[Metric, str] = {
    "accuracy": "top-1 accuracy",
    "mean_per_class_accuracy": "mean accuracy of the classes",
    "real_accuracy": "share of images given one of their labels of ReaL",
}


class Preparation(NamedTuple):
    """Preprocessing of published results; mean and standard deviation are the model's."""

    resize: Literal["squash", "crop"]
    crop_fraction: float
    interpolation: Literal["bilinear", "bicubic"]
    source: str


class FineTuning(NamedTuple):
    """How published results were fine-tuned."""

    steps: int
    batch_size: int
    rates: tuple[float, ...]
    """Learning rates of SGD with momentum that were tried."""
    side_px: int
    source: str
    """Paper and table."""


@dataclass(frozen=True)
class Benchmark:
    """A data set with published scores."""

    name: str
    title: str
    """Its name in papers."""
    paper: str
    num_classes: int
    counts: tuple[int, int, int]
    """Published numbers of train, validation and test images; 0 where there is no such split."""
    metric: Metric
    metric_source: str
    """Who reports this metric."""
    folders: tuple[str, ...]
    """Folders to look in, below ``VITRAIL_DATA``."""
    layout: str
    download: str
    hub: str | None
    """Name on the Hugging Face hub, if it is there."""
    preparation: Preparation
    fine_tuning: FineTuning | None = None
    """Published fine-tuning settings, if any."""
    group: str = ""
    """VTAB only: natural, specialised or structured."""

    @property
    def scored_split(self) -> Literal["validation", "test"]:
        """The published split that papers score on; opened as the test split."""
        return "test" if self.counts[2] else "validation"

    @property
    def num_scored(self) -> int:
        """Number of images in that split."""
        return self.counts[2] or self.counts[1]


VIT_PREPARATION = Preparation("squash", 1.0, "bilinear", "Dosovitskiy et al. 2021, published code")
"""Images are squashed to a square of the model's size."""


def vit_fine_tuning(steps: int, rates: tuple[float, ...], *, side_px: int = 384) -> FineTuning:
    """Return a row of the table of Dosovitskiy et al. 2021: batches of 512, cosine, no weight decay."""
    return FineTuning(steps, 512, rates, side_px, "Dosovitskiy et al. 2021, table 4")


GROUP = "vtab-1k"
"""Name of all VTAB tasks together, where several data sets can be scored at once."""


def _collect(module: ModuleType) -> Mapping[str, Benchmark]:
    found: Mapping[str, Benchmark] = getattr(module, "BENCHMARKS", {})
    return found


BENCHMARKS: Registry[Benchmark] = Registry("benchmark", "vitrail.tasks.classification.benchmarks", _collect)


def benchmark_of(source: str) -> Benchmark | None:
    """Return the benchmark that ``NAME`` or ``NAME:FOLDER`` names; None for any other source.

    >>> benchmark_of("oxford-pets:data/pets").num_classes
    37
    >>> benchmark_of("photos/") is None
    True
    """
    name = source.partition(":")[0].strip().lower()
    is_known = name in BENCHMARKS
    return BENCHMARKS[name] if is_known else None
