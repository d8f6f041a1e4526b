"""Data sets of the package ``datasets``, saved or on the hub: their columns, and a cheap look at them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from vitrail.core.errors import DataError, import_optional, one_line, reading
from vitrail.core.files import expand, parse_json, read_file
from vitrail.core.hub import without_waiting
from vitrail.data.findings import Finding, about
from vitrail.data.splits import SPLIT_NAMES, SplitName
from vitrail.data.tables import content_of, find_column

INFO_FILE = "dataset_info.json"


class HubSet(NamedTuple):
    """A data set of the hub, or in its layout."""

    name: str
    splits: dict[SplitName, Any]
    """The rows of the recognised splits; their original names are in ``found``."""
    found: dict[SplitName, str]
    unread: tuple[str, ...]

    @property
    def features(self) -> Any:
        return next(iter(self.splits.values())).features

    def find_images(self, known: Sequence[str]) -> str:
        """Find the column of images: one of that type before one of a known name."""
        return find_column(list(self.features), known, "image", self.name, preferred=self.of_type("Image"))

    def images(self, split: SplitName, column: str) -> ColumnImages:
        rows, image = self.splits[split], import_datasets(self.name).Image
        if column in self.of_type("Image"):
            rows = rows.cast_column(column, image(decode=False))
        return ColumnImages(rows, column)

    def row_names(self, split: SplitName) -> list[str]:
        return [f"{split}#{row}" for row in range(len(self.splits[split]))]

    def of_type(self, name: str) -> list[str]:
        kind = getattr(import_datasets(self.name), name)
        return [column for column, feature in self.features.items() if isinstance(feature, kind)]

    @property
    def findings(self) -> tuple[Finding, ...]:
        message, remedy = f"{len(self.unread)} splits are not used", "Name them train, validation or test"
        return tuple(about(self.unread, "warning", "unread-splits", message, remedy))

    def demand(self, split: SplitName | None = None) -> None:
        """Refuse a data set without this split, or without any.

        Raises:
            DataError: it is not there.
        """
        if split not in self.splits if split else not self.splits:
            there = [*self.found.values(), *self.unread]
            raise DataError(
                f"the data set {self.name!r} has the splits {', '.join(there) or 'none'}",
                expected=f"a split named {split or 'train, validation or test'}",
                remedy="Rename a split, or save the one you mean as a data set of its own",
            )


def is_saved(path: Path) -> bool:
    """Tell whether ``save_to_disk`` wrote a folder."""
    return (path / "dataset_dict.json").is_file() or (path / "state.json").is_file()


def saved_features(path: Path) -> list[Mapping[str, Any]]:
    """Return the features of each split in a folder that ``save_to_disk`` wrote."""
    files = [path / INFO_FILE, *sorted(path.glob(f"*/{INFO_FILE}"))] if is_saved(path) else []
    return list(filter(None, map(_described, files)))


def cached_features(name: str) -> list[Mapping[str, Any]]:
    """Return the features of a data set in the local cache."""
    home = expand(os.environ.get("HF_HOME", "~/.cache/huggingface"))
    cache = expand(os.environ.get("HF_DATASETS_CACHE", home / "datasets"))
    owner, _, rest = name.partition("/")
    folders = dict.fromkeys((f"{owner}___{rest.lower()}", f"{owner.lower()}___{rest.lower()}"))
    files = [file for folder in folders for file in sorted((cache / folder).rglob(INFO_FILE))]
    return list(filter(None, map(_described, files)))


def _described(file: Path) -> Mapping[str, Any]:
    try:
        features = parse_json(read_file(file))["features"]
        return features if isinstance(features, Mapping) else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


class ColumnImages(Sequence[Any]):
    """The undecoded images of a column on disk, read one at a time: bytes, or the path of a file."""

    def __init__(self, rows: Any, column: str) -> None:
        self._rows, self._column = rows.select_columns([column]), column

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: Any) -> Any:
        value = content_of(self._rows[int(index)][self._column])
        if value is None:  # reading it reports that it is empty, under its name
            return b""
        return value if isinstance(value, bytes) else Path(value)


def load_saved(path: Path) -> HubSet:
    """Read a folder that ``save_to_disk`` wrote.

    Raises:
        DataError: it is damaged, or the package is not installed.
    """
    datasets = import_datasets(str(path))
    expected, done = "a folder that save_to_disk of the package datasets wrote", "read as a saved data set"
    with reading(path, expected=expected, remedy="Save the data set again", error=DataError, done=done):
        return _by_split(datasets.load_from_disk(str(path)), str(path))


def load_named(name: str) -> HubSet:
    """Load ``owner/name``, or a configuration by ``owner/name/config``; the local cache needs no network.

    Raises:
        DataError: no such data set exists, the network cannot be reached, or the package is not installed.
    """
    datasets = import_datasets(name)
    owner, *rest = name.split("/")
    try:
        with without_waiting():
            loaded = datasets.load_dataset("/".join((owner, *rest[:1])), *rest[1:])
    except Exception as error:  # network, hub and builder errors have no common type
        raise DataError(
            f"{Path.cwd()} has no file or folder {name!r}, and the Hugging Face data set of that name cannot "
            f"be loaded: {type(error).__name__}: {one_line(error)}",
            expected="an existing path; or a data set in the local cache, or a network connection and an "
            "existing name; one of several configurations is named hf:owner/name/config",
            remedy="Correct the path or the name, connect to the network, or download the data and give its "
            "folder",
        ) from None
    return _by_split(loaded, name)


def import_datasets(name: str) -> Any:
    """Return the package ``datasets``.

    Raises:
        DataError: it is not installed.
    """
    return import_optional("datasets", f"{name!r} needs", "datasets", "data", DataError)


def _by_split(loaded: Any, name: str) -> HubSet:
    if not isinstance(loaded, Mapping):  # a single split
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
