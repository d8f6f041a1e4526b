"""File formats of parallel text: one file each, recognised by what a path holds.

A format file defines ``FORMAT``; adding the file to this folder registers it.
"""

from __future__ import annotations

from types import ModuleType

from vitrail.core.registry import Registry
from vitrail.tasks.translation.formats.contract import PairFormat


def _collect(module: ModuleType) -> dict[str, PairFormat]:
    found = getattr(module, "FORMAT", None)
    return {} if found is None else {found.name: found}


PAIR_FORMATS: Registry[PairFormat] = Registry(
    "format of parallel text", "vitrail.tasks.translation.formats", _collect
)
