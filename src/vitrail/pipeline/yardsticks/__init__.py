"""How models are compared: each file of this folder says it of one kind of data."""

from __future__ import annotations

from types import ModuleType

from vitrail.data.benchmarks import benchmark_of
from vitrail.pipeline.yardsticks.class_means import ClassMeanYardstick
from vitrail.pipeline.yardsticks.contract import Yardstick
from vitrail.registry import Registry

__all__ = ["YARDSTICKS", "Yardstick", "yardstick_of"]


def _collect(module: ModuleType) -> dict[str, Yardstick]:
    found: Yardstick | None = getattr(module, "YARDSTICK", None)
    return {} if found is None else {found.kind: found}


YARDSTICKS: Registry[Yardstick] = Registry("kind of data that can be compared", __name__, _collect)
"""Every yardstick by its kind of data."""


def yardstick_of(kind: str, source: str) -> Yardstick:
    """Return the yardstick of a kind of data; of a benchmark that of the score which papers report."""
    benchmark = benchmark_of(source) if kind == "images" else None
    if benchmark is not None and benchmark.metric == "mean_per_class_accuracy":
        return ClassMeanYardstick()
    return YARDSTICKS[kind]
