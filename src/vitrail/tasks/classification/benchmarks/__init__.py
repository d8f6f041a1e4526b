"""Data sets that papers report scores on, by name: where they come from, and how they are scored.

A file of this folder defines ``BENCHMARKS``; adding the file registers them.
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
    """How published results prepared images; mean and deviation are the model's."""

    resize: Literal["squash", "crop"]
    """As in ``Preprocessing``."""
    crop_fraction: float
    """As in ``Preprocessing``."""
    interpolation: Literal["bilinear", "bicubic"]
    """As in ``Preprocessing``."""
    source: str
    """Who prepared them so."""


class FineTuning(NamedTuple):
    """How published results were fine-tuned."""

    steps: int
    """Number of steps."""
    batch_size: int
    """Images of a step."""
    rates: tuple[float, ...]
    """Learning rates of SGD with momentum that were tried."""
    side_px: int
    """Height and width of the images."""
    source: str
    """Paper and table."""


@dataclass(frozen=True)
class Benchmark:
    """A data set by its name."""

    name: str
    """What users call it."""
    title: str
    """What papers call it."""
    paper: str
    """Who made it."""
    num_classes: int
    """Number of classes."""
    counts: tuple[int, int, int]
    """Published numbers of images for train, validation and test; 0 where there is no such split."""
    metric: Metric
    """What papers report."""
    metric_source: str
    """Who reports it so."""
    folders: tuple[str, ...]
    """Where it is looked for below the folder that ``VITRAIL_DATA`` names."""
    layout: str
    """What lies in such a folder."""
    download: str
    """Where it is published."""
    hub: str | None
    """Its name on the Hugging Face hub; None where it has no home there."""
    preparation: Preparation
    """How images are prepared."""
    fine_tuning: FineTuning | None = None
    """How models were fine-tuned on it, where a paper says so."""
    group: str = ""
    """Of VTAB: natural, specialised or structured."""

    @property
    def scored_split(self) -> Literal["validation", "test"]:
        """The split that papers score on, as it is published; opened, it is the test."""
        return "test" if self.counts[2] else "validation"

    @property
    def num_scored(self) -> int:
        """Number of images that papers score on."""
        return self.counts[2] or self.counts[1]


VIT_PREPARATION = Preparation("squash", 1.0, "bilinear", "Dosovitskiy et al. 2021, published code")
"""Images are resized to a square of the model's size, whatever their shape."""


def vit_fine_tuning(steps: int, rates: tuple[float, ...], *, side_px: int = 384) -> FineTuning:
    """Return a row of the table of Dosovitskiy et al. 2021: batches of 512, cosine, no weight decay."""
    return FineTuning(steps, 512, rates, side_px, "Dosovitskiy et al. 2021, table 4")


GROUP = "vtab-1k"
"""What stands for all tasks of VTAB at once, where several data sets can be scored together."""


def _collect(module: ModuleType) -> Mapping[str, Benchmark]:
    found: Mapping[str, Benchmark] = getattr(module, "BENCHMARKS", {})
    return found


BENCHMARKS: Registry[Benchmark] = Registry("benchmark", "vitrail.tasks.classification.benchmarks", _collect)


def benchmark_of(source: str) -> Benchmark | None:
    """Return the benchmark that a source names, as ``NAME`` or ``NAME:FOLDER``; None for any other source.

    >>> benchmark_of("oxford-pets:data/pets").num_classes
    37
    >>> benchmark_of("photos/") is None
    True
    """
    name = source.partition(":")[0].strip().lower()
    is_known = name in BENCHMARKS
    return BENCHMARKS[name] if is_known else None
