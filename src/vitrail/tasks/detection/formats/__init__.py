"""File formats of detection data: one file each, recognised by what a path holds.

A format file defines ``FORMAT``; adding the file to this folder registers it.
"""

from __future__ import annotations

from types import ModuleType

from vitrail.core.registry import Registry
from vitrail.tasks.detection.formats.contract import DetectionFormat


def _collect(module: ModuleType) -> dict[str, DetectionFormat]:
    found = getattr(module, "FORMAT", None)
    return {} if found is None else {found.name: found}


BOX_FORMATS: Registry[DetectionFormat] = Registry(
    "format of detection data", "vitrail.tasks.detection.formats", _collect
)
