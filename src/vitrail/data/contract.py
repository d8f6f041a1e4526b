"""What a format file provides, and what reading it returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from vitrail.data.dataset import ImageSplit
from vitrail.data.findings import Finding

SplitName = Literal["train", "validation", "test"]

SPLIT_NAMES: dict[str, SplitName] = {
    "train": "train",
    "training": "train",
    "val": "validation",
    "valid": "validation",
    "validation": "validation",
    "dev": "validation",
    "test": "test",
    "testing": "test",
    "eval": "test",
}
"""Spellings of the splits' names, in lower case."""


@dataclass(frozen=True)
class RawDataset:
    """A data set as its source divides it, before missing splits are carved out."""

    class_names: tuple[str, ...]
    """Names of the classes, in the order of the labels."""
    splits: Mapping[SplitName, ImageSplit]
    """The splits that the source has; ``train`` always."""
    findings: tuple[Finding, ...] = ()
    """What was noticed while reading."""
    upright: bool | None = None
    """Whether images may not be mirrored; None where the source does not tell."""
    format: str = field(default="")
    """Name of the format, where it is not that of the format file."""


@dataclass(frozen=True)
class Format:
    """One way in which image data lies on disk."""

    name: str
    """Short name, shown to the user."""
    layout: str
    """What it looks like, for error messages and documentation."""
    recognises: Callable[[Path], bool]
    """Tells cheaply whether a file or folder is of this format."""
    read: Callable[[Path], RawDataset]
    """Reads it; raises ``DataError`` where it is recognised and yet cannot be used."""
    rank: int = 0
    """Formats of lower rank are asked first."""
