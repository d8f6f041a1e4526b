"""What a format file of captioned images provides, and what reading it returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from vitrail.data.findings import Finding
from vitrail.data.splits import SplitName
from vitrail.tasks.captioning.dataset import CaptionFacts, CaptionSplit


@dataclass(frozen=True)
class RawCaptions:
    """A data set as its source divides it, before missing splits are carved out."""

    splits: Mapping[SplitName, CaptionSplit]
    """The splits that the source has, at least one."""
    findings: tuple[Finding, ...] = ()
    """What was noticed while reading."""
    facts: CaptionFacts = field(default_factory=CaptionFacts)
    """What the source holds beside the samples."""


@dataclass(frozen=True)
class CaptionFormat:
    """One way in which images with captions lie on disk."""

    name: str
    """Short name, shown to the user."""
    layout: str
    """What it looks like, for error messages and documentation."""
    recognises: Callable[[Path], bool]
    """Tells cheaply whether a file or folder is of this format; never raises on damaged files."""
    read: Callable[[Path], RawCaptions]
    """Reads it; raises ``DataError`` where it is recognised and yet cannot be used."""
    rank: int = 0
    """Formats of lower rank are asked first."""
