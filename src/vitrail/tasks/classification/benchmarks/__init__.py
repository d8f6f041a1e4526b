"""Data sets that papers report scores on, by name: where they come from, and how they are scored.

A file of this folder defines ``BENCHMARKS``; adding the file registers them.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType

from vitrail.core.registry import Registry
from vitrail.tasks.classification.benchmarks.contract import Benchmark

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
