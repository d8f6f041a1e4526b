"""Loading data sets with the package ``datasets``, by name or from a folder, whatever their rows hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from vitrail.core.errors import DataError
from vitrail.core.hub import without_waiting
from vitrail.data.findings import Finding
from vitrail.data.splits import SPLIT_NAMES, SplitName


class HubSet(NamedTuple):
    """A data set of the hub, or of its layout."""

    name: str
    """What messages call it."""
    splits: dict[SplitName, Any]
    """The rows of the splits whose names are known, with the names that they have there in ``found``."""
    found: dict[SplitName, str]
    """What each of these splits is called there."""
    unread: tuple[str, ...]
    """Splits that are left out."""

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What the doctor is told of splits that are left out."""
        if not self.unread:
            return ()
        return (
            Finding(
                "warning",
                "unread-splits",
                f"{len(self.unread)} splits are not used",
                "Name them train, validation or test",
                self.unread,
            ),
        )

    def lacks(self, expected: str) -> DataError:
        """Return the error of a data set without the splits that it needs."""
        there = [*self.found.values(), *self.unread]
        return DataError(
            f"the data set {self.name!r} has the splits {', '.join(there) or 'none'}",
            expected=expected,
            remedy="Rename a split, or save the one you mean as a data set of its own",
        )


class ColumnImages(Sequence[Any]):
    """The images of a column on disk, read one at a time: bytes, or the path of a file.

    Args:
        rows: a data set whose image column is not decoded.
        column: name of that column.
    """

    def __init__(self, rows: Any, column: str) -> None:
        self._rows, self._column = rows.select_columns([column]), column

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: Any) -> Any:
        value = self._rows[int(index)][self._column]
        if isinstance(value, Mapping):
            value = value["bytes"] if value.get("bytes") is not None else value["path"]
        if value is None:  # reading it tells that it is empty, under its name
            return b""
        return bytes(value) if isinstance(value, bytes | bytearray) else Path(value)


def load_saved(path: Path) -> HubSet:
    """Read a folder that ``save_to_disk`` wrote.

    Raises:
        DataError: it is damaged, or the package is not installed.
    """
    datasets = import_datasets(str(path))
    try:
        loaded = datasets.load_from_disk(str(path))
    except Exception as error:  # whatever the package meets in a damaged folder
        raise DataError(
            f"{path} cannot be read as a saved data set: {_one_line(error)}",
            expected="a folder that save_to_disk of the package datasets wrote",
            remedy="Save the data set again",
        ) from None
    return _by_split(loaded, str(path))


def load_named(name: str, load: Callable[[Any], Any], *, hint: str = "") -> HubSet:
    """Load a data set by its name; what is in the local cache needs no network.

    Args:
        name: what the user gave.
        load: is given the package, and loads.
        hint: what else a name may be, for the error.

    Raises:
        DataError: there is none of that name, the network cannot be reached, or the package is not installed.
    """
    datasets = import_datasets(name)
    try:
        with without_waiting():
            loaded = load(datasets)
    except Exception as error:  # network, hub and builder errors have no common type
        raise DataError(
            f"{Path.cwd()} has no file or folder {name!r}, and the Hugging Face data set of that name cannot "
            f"be loaded: {type(error).__name__}: {_one_line(error)}",
            expected="an existing path; or a data set in the local cache, or a network connection and an "
            f"existing name{hint}",
            remedy="Correct the path or the name, connect to the network, or download the data and give its "
            "folder",
        ) from None
    return _by_split(loaded, name)


def import_datasets(name: str) -> Any:
    """Return the package ``datasets``.

    Raises:
        DataError: it is not installed.
    """
    try:
        import datasets
    except ImportError:
        raise DataError(
            f"{name!r} needs the package datasets, which is not installed",
            expected="datasets beside vitrail",
            remedy="Install it with: pip install 'vitrail[data]'",
        ) from None
    return datasets


def _by_split(loaded: Any, name: str) -> HubSet:
    if not isinstance(loaded, Mapping):  # one split alone
        loaded = {"train": loaded}
    splits: dict[SplitName, Any] = {}
    found: dict[SplitName, str] = {}
    unread = []
    for key, rows in loaded.items():
        split = SPLIT_NAMES.get(str(key).lower())
        if split is None or split in splits:
            unread.append(str(key))
        else:
            splits[split], found[split] = rows, str(key)
    return HubSet(name, splits, found, tuple(unread))


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
