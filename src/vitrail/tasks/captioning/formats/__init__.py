"""File formats of captioned images: one file each, recognised by what a path holds.

A format file defines ``FORMAT``; adding the file to this folder registers it.
"""

from __future__ import annotations

from types import ModuleType

from vitrail.core.registry import Registry
from vitrail.tasks.captioning.formats.contract import CaptionFormat


def _collect(module: ModuleType) -> dict[str, CaptionFormat]:
    found = getattr(module, "FORMAT", None)
    return {} if found is None else {found.name: found}


CAPTION_FORMATS: Registry[CaptionFormat] = Registry(
    "format of captioned images", "vitrail.tasks.captioning.formats", _collect
)
