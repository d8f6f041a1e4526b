"""What a format file of parallel text provides, and what reading it returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from vitrail.data.findings import Finding
from vitrail.data.splits import SplitName
from vitrail.data.text.languages import Languages
from vitrail.tasks.translation.dataset import PairSplit


@dataclass(frozen=True)
class RawPairs:
    """Parallel text as its source divides it, before missing splits are carved out."""

    languages: Languages
    """Of the source and the target side."""
    splits: Mapping[SplitName, PairSplit]
    """The splits that the source has, at least one."""
    findings: tuple[Finding, ...] = ()
    """What was noticed while reading."""


@dataclass(frozen=True)
class PairFormat:
    """One way in which parallel text lies on disk."""

    name: str
    """Short name, shown to the user."""
    layout: str
    """What it looks like, for error messages and documentation."""
    recognises: Callable[[Path, Languages | None], bool]
    """Tells cheaply whether a path is of this format, given the languages that were asked for, if any."""
    read: Callable[[Path, Languages | None], RawPairs]
    """Reads it; raises ``DataError`` where it is recognised and yet cannot be used."""
    rank: int = 0
    """Formats of lower rank are asked first."""
    suffixes: tuple[str, ...] = ()
    """Of files that can be nothing else, and are read even where they are not recognised: for the error."""
