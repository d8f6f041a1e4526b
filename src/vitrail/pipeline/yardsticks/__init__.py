"""How models are compared: each file of this folder says it of one kind of data."""

from __future__ import annotations

from types import ModuleType

from vitrail.pipeline.yardsticks.contract import Yardstick
from vitrail.registry import Registry

__all__ = ["YARDSTICKS", "Yardstick"]


def _collect(module: ModuleType) -> dict[str, Yardstick]:
    found: Yardstick | None = getattr(module, "YARDSTICK", None)
    return {} if found is None else {found.kind: found}


YARDSTICKS: Registry[Yardstick] = Registry("kind of data that can be compared", __name__, _collect)
"""Every yardstick by its kind of data."""
