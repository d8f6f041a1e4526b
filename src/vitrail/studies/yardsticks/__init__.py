"""How models are compared: each file of this folder says it of one kind of data."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType

from vitrail.core.registry import Registry
from vitrail.studies.yardsticks.class_means import ClassMeanYardstick
from vitrail.studies.yardsticks.contract import Yardstick
from vitrail.studies.yardsticks.reassessed import ReassessedYardstick
from vitrail.tasks.classification.benchmarks import benchmark_of
from vitrail.tasks.classification.benchmarks.contract import Metric

__all__ = ["YARDSTICKS", "Yardstick", "yardstick_of"]


def _collect(module: ModuleType) -> dict[str, Yardstick]:
    found: Yardstick | None = getattr(module, "YARDSTICK", None)
    return {} if found is None else {found.kind: found}


YARDSTICKS: Registry[Yardstick] = Registry("kind of data that can be compared", __name__, _collect)
"""Every yardstick by its kind of data."""
PUBLISHED: Mapping[Metric, Yardstick] = {
    "mean_per_class_accuracy": ClassMeanYardstick(),
    "real_accuracy": ReassessedYardstick(),
}
"""Those of benchmarks that papers do not score by plain accuracy."""


def yardstick_of(kind: str, source: str) -> Yardstick:
    """Return the yardstick of a kind of data; of a benchmark that of the score which papers report."""
    benchmark = benchmark_of(source) if kind == "classification" else None
    published = None if benchmark is None else PUBLISHED.get(benchmark.metric)
    return YARDSTICKS[kind] if published is None else published
