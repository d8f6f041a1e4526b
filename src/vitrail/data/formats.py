"""File formats: what a format provides, and how a path or a name is resolved and read."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, TypeVar

from vitrail.core.errors import DataError, reading
from vitrail.core.registry import Registry
from vitrail.data.dataset import ImageSplit
from vitrail.data.findings import Finding
from vitrail.data.splits import SplitName

R = TypeVar("R")

HUB_PREFIX = "hf:"
HUB_NAME = re.compile(r"^[A-Za-z0-9][\w.-]*/[\w-]+$")  # what has a suffix is a file that is missing
HUB_FORMAT = "Hugging Face data set"


@dataclass(frozen=True)
class RawDataset:
    """Labelled images as their source divides them, before missing splits are drawn."""

    class_names: tuple[str, ...]
    """In the order of the labels."""
    splits: Mapping[SplitName, ImageSplit]
    """The source's splits; ``train`` always."""
    findings: tuple[Finding, ...] = ()
    upright: bool | None = None
    """Whether images may not be flipped; None if the source does not tell."""
    format: str = ""
    """Name of the format, if it is not that of the format file."""


@dataclass(frozen=True)
class Format(Generic[R]):
    """An on-disk format of a task's data; reading it returns an ``R``."""

    name: str
    """Short name, shown to the user."""
    layout: str
    """A description for error messages and documentation."""
    recognises: Callable[..., bool]
    """Tells cheaply whether a path is of this format; never raises on damaged files. Parallel text is given
    the languages that were asked for as well."""
    read: Callable[..., R]
    """Reads it; raises ``DataError`` if it is recognised and yet cannot be used."""
    rank: int = 0
    """Formats of lower rank are asked first."""
    suffixes: tuple[str, ...] = ()
    """Unmistakable suffixes, read even if the content is not recognised: for the error."""


def formats_in(package: str, kind: str) -> Registry[Format[Any]]:
    """Return the formats of a task by name: adding a file with ``FORMAT``, or ``FORMATS``, registers it."""

    def collect(module: ModuleType) -> dict[str, Format[Any]]:
        alone = getattr(module, "FORMAT", None)
        found = getattr(module, "FORMATS", () if alone is None else (alone,))
        return {entry.name: entry for entry in found} if isinstance(found, tuple) else {}

    return Registry(kind, package, collect)


def format_of(formats: Mapping[str, Format[R]], path: Path, *asked: Any) -> Format[R] | None:
    """Return the first format by rank that recognises a path, or None; a cheap look."""
    for entry in sorted(formats.values(), key=lambda entry: entry.rank):
        try:
            if entry.recognises(path, *asked):
                return entry
        except OSError:  # such as a folder that may not be listed
            continue
    return None


def format_by_suffix(formats: Mapping[str, Format[R]], path: Path, ignored: str = "") -> Format[R] | None:
    """Return the only format with such a suffix, before an ignored one."""
    name = path.name.lower().removesuffix(ignored)
    is_meant = (entry for entry in formats.values() if entry.suffixes and name.endswith(entry.suffixes))
    return next(is_meant, None) if path.is_file() else None


def layouts(formats: Mapping[str, Format[Any]]) -> str:
    """Describe the layouts of these formats, for an error."""
    return "one of: " + "; ".join(entry.layout for entry in formats.values())


@contextmanager
def reading_file(path: Path, *, expected: str = "the file as it was published") -> Iterator[None]:
    """Turn the errors of reading a file into one that names it; a ``ValueError`` says what is wrong in it."""
    with reading(path, expected=expected, remedy="Download or write the file again", error=DataError):
        if path.is_file() and not path.stat().st_size:
            raise ValueError("it is empty")
        yield


def is_name_on_hub(source: str, path: Path) -> bool:
    """Tell whether a source that is not a path has the form of a hub name."""
    is_name = re.match(r"^[A-Za-z0-9][\w.-]*/[\w.-]+(/[\w.-]+)?$", source) is not None
    return is_name and not path.exists() and not path.parent.exists()


def locate(
    text: str,
    *,
    read: Callable[[Path], tuple[R, str] | None],
    read_by_name: Callable[[str], R],
    is_name: re.Pattern[str] = HUB_NAME,
    missing: tuple[str, ...] = ("path", "an existing folder or file, or a Hugging Face name (hf:owner/name)"),
) -> tuple[R, str]:
    """Return what was read, and the name of its format.

    An existing path precedes a name; ``hf:NAME`` is explicit.

    Args:
        text: what the user named.
        read: reads a path and returns its format, or returns None if nothing is there.
        read_by_name: reads a data set of the hub.
        is_name: the form of such a data set's name.
        missing: what is not there, what was expected and, if known, the remedy, for the error.

    Raises:
        DataError: there is nothing of that name, or it cannot be read.
    """
    if text.startswith(HUB_PREFIX):
        return read_by_name(text.removeprefix(HUB_PREFIX)), HUB_FORMAT
    try:
        path = Path(text).expanduser()
        found = read(path) if text.strip() else None
        is_hub_name = is_name.match(text) is not None and not path.parent.exists()
    except DataError:
        raise
    except (OSError, RuntimeError, ValueError) as error:  # no permission, no home, an invalid path
        reason = error.strerror or error if isinstance(error, OSError) else error
        raise DataError(
            f"{text!r} cannot be opened: {reason}",
            expected="a path that exists and may be read",
            remedy="Correct the path or its permissions",
        ) from None
    if found is not None:
        return found
    if is_hub_name:
        return read_by_name(text), HUB_FORMAT
    raise DataError(
        f"there is no {missing[0]} {text!r}",
        expected=missing[1],
        remedy=missing[2] if missing[2:] else f"Correct the path; the current folder is {Path.cwd()}",
    )
