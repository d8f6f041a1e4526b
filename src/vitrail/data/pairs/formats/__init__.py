"""File formats of parallel text: one file each, recognised by what a path holds.

A format file defines ``FORMAT``; adding the file to this folder registers it.
"""

from __future__ import annotations

from types import ModuleType

from vitrail.data.pairs.formats.contract import PairFormat
from vitrail.registry import Registry


def _collect(module: ModuleType) -> dict[str, PairFormat]:
    found = getattr(module, "FORMAT", None)
    return {} if found is None else {found.name: found}


PAIR_FORMATS: Registry[PairFormat] = Registry(
    "format of parallel text", "vitrail.data.pairs.formats", _collect
)
