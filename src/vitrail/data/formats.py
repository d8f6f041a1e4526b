"""File formats: what a format provides, and how a path or a name is found and read."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from vitrail.core.errors import DataError
from vitrail.data.dataset import ImageSplit
from vitrail.data.findings import Finding
from vitrail.data.splits import SplitName


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


R = TypeVar("R")

HUB_PREFIX = "hf:"
HUB_NAME = re.compile(r"^[A-Za-z0-9][\w.-]*/[\w.-]+$")
HUB_FORMAT = "Hugging Face data set"


def locate(
    text: str, *, read: Callable[[Path], tuple[R, str] | None], read_by_name: Callable[[str], R]
) -> tuple[R, str]:
    """Return what was read, and the name of its format.

    A path that exists comes before a name; ``hf:NAME`` says explicitly what is meant.

    Args:
        text: what the user named.
        read: reads a path and returns its format, or returns None where there is nothing at it.
        read_by_name: reads a data set of the hub.

    Raises:
        DataError: there is nothing of that name, or it cannot be read.
    """
    if text.startswith(HUB_PREFIX):
        return read_by_name(text.removeprefix(HUB_PREFIX)), HUB_FORMAT
    try:
        path = Path(text).expanduser()
        found = read(path) if text.strip() else None
        is_hub_name = HUB_NAME.match(text) is not None and not path.parent.exists()
    except DataError:
        raise
    except (OSError, RuntimeError, ValueError) as error:  # no permission, no home, a name that is no path
        reason = error.strerror or error if isinstance(error, OSError) else error
        raise DataError(
            f"{text!r} cannot be opened: {reason}",
            expected="a path that exists and may be read",
            remedy="Correct the path or its permissions",
        ) from None
    if found is not None:
        return found
    if is_hub_name and not path.suffix:
        return read_by_name(text), HUB_FORMAT
    raise DataError(
        f"there is no path {text!r}",
        expected="an existing folder or file, or a Hugging Face name (hf:owner/name)",
        remedy=f"Correct the path; the current folder is {Path.cwd()}",
    )
