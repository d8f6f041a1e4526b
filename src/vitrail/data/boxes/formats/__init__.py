"""File formats of detection data: one file each, recognised by what a path holds.

A format file defines ``FORMAT``; adding the file to this folder registers it.
"""

from __future__ import annotations

from types import ModuleType

from vitrail.data.boxes.formats.contract import DetectionFormat
from vitrail.registry import Registry


def _collect(module: ModuleType) -> dict[str, DetectionFormat]:
    found = getattr(module, "FORMAT", None)
    return {} if found is None else {found.name: found}


BOX_FORMATS: Registry[DetectionFormat] = Registry(
    "format of detection data", "vitrail.data.boxes.formats", _collect
)
