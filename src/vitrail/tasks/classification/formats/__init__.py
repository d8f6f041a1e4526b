"""File formats of image classification data: one file each, recognised by what a path holds.

A format file defines ``FORMAT``; adding the file to this folder registers it.
"""

from __future__ import annotations

from types import ModuleType

from vitrail.core.registry import Registry
from vitrail.data.formats import Format


def _collect(module: ModuleType) -> dict[str, Format]:
    found = getattr(module, "FORMAT", None)
    return {} if found is None else {found.name: found}


FORMATS: Registry[Format] = Registry("data format", "vitrail.tasks.classification.formats", _collect)
