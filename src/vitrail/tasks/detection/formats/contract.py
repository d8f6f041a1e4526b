"""What a format file of detection data provides, and what reading it returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from vitrail.data.findings import Finding
from vitrail.data.splits import SplitName
from vitrail.tasks.detection.dataset import BoxSplit, SourceFacts


@dataclass(frozen=True)
class RawBoxes:
    """A data set as its source divides it, before missing splits are carved out."""

    class_names: tuple[str, ...]
    """Names of the classes, in the order of the labels."""
    class_ids: tuple[int, ...]
    """Their ids in the source, in the same order."""
    splits: Mapping[SplitName, BoxSplit]
    """The splits that the source has, at least one."""
    findings: tuple[Finding, ...] = ()
    """What was noticed while reading."""
    facts: SourceFacts = field(default_factory=SourceFacts)
    """What the source says of itself."""


@dataclass(frozen=True)
class DetectionFormat:
    """One way in which images with boxes lie on disk."""

    name: str
    """Short name, shown to the user."""
    layout: str
    """What it looks like, for error messages and documentation."""
    recognises: Callable[[Path], bool]
    """Tells cheaply whether a file or folder is of this format; never raises on damaged files."""
    read: Callable[[Path], RawBoxes]
    """Reads it; raises ``DataError`` where it is recognised and yet cannot be used."""
    rank: int = 0
    """Formats of lower rank are asked first."""
    suffixes: tuple[str, ...] = ()
    """Of files that are read even where they are not recognised, for the error."""
