"""Rows of a table to labelled images: which column is which, and what its values mean."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitrail.core.errors import DataError
from vitrail.data.contract import RawDataset, SplitName
from vitrail.data.dataset import ImageSplit
from vitrail.data.findings import Finding, number_of
from vitrail.data.labels import encode_labels, order_class_names
from vitrail.data.split_column import rows_by_split

IMAGE_COLUMNS = (
    "image", "images", "img", "image_path", "img_path", "image_file", "file_name", "filename", "file",
    "filepath", "file_path", "path", "picture", "photo", "pixels",
)  # fmt: skip
LABEL_COLUMNS = (
    "label", "labels", "class", "class_name", "classname", "category", "target", "fine_label", "class_id",
    "label_id", "species", "breed", "tag", "y",
)  # fmt: skip
UNKNOWN_LABEL = -1  # what the hub writes beside an image without a label, where classes have names


@dataclass(frozen=True)
class Table:
    """The columns of one file, decoded no further than the file format does it."""

    path: Path
    """The file; image paths are relative to its folder."""
    columns: Mapping[str, Sequence[Any]]
    """Values by column name."""
    label_names: Mapping[str, Sequence[str]]
    """Class names by label column, where the file stores them."""
    findings: tuple[Finding, ...] = ()
    """What was noticed while reading."""


def tables_to_dataset(tables: Mapping[SplitName, Table]) -> RawDataset:
    """Join the tables of one or several splits into one data set.

    A single table may divide its rows by a column named split, set, subset or partition. Rows without an
    image or a label are left out and reported.

    Raises:
        DataError: a table has no recognised column, names no existing file, or has labels without a name; or
            a row is of no known split.
    """
    rows = {split: _Rows.of(table) for split, table in tables.items()}
    findings = [finding for part in rows.values() for finding in part.findings]
    if set(rows) == {"train"}:
        rows = rows["train"].divide(tables["train"])
    stored = next((part.names for part in rows.values() if part.names is not None), None)
    if stored is not None and len(set(stored)) == len(stored):
        class_names = tuple(stored)
        for part in rows.values():
            part.name_labels(class_names)
    else:
        class_names = order_class_names(text for part in rows.values() for text in part.labels)
    splits = {
        split: ImageSplit(part.images, encode_labels(part.labels, class_names), part.image_names)
        for split, part in rows.items()
    }
    return RawDataset(class_names=class_names, splits=splits, findings=tuple(findings))


def names_in_features(features: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the class names by column from a Hugging Face description of features."""
    return {
        column: [str(name) for name in feature["names"]]
        for column, feature in features.items()
        if isinstance(feature, Mapping) and feature.get("_type") == "ClassLabel" and feature.get("names")
    }


def names_in_metadata(metadata: Mapping[bytes, bytes] | None) -> dict[str, list[str]]:
    """Return the class names by column that ``datasets`` writes into a parquet file's metadata."""
    try:
        described = json.loads((metadata or {})[b"huggingface"])["info"]["features"]
    except (KeyError, ValueError, TypeError):
        return {}
    return names_in_features(described) if isinstance(described, Mapping) else {}


def find_column(
    columns: Sequence[str],
    known: Sequence[str],
    what: str,
    table: Path | str,
    *,
    preferred: Sequence[str] = (),
    taken: str | None = None,
) -> str:
    """Return the column that holds the images or the labels.

    Args:
        columns: all names of the table.
        known: recognised names in lower case, the likeliest first.
        what: the noun for the error.
        table: what to call the table in the error.
        preferred: columns that the table's own description declares to be what is sought.
        taken: a column that already has another meaning.

    Raises:
        DataError: none is recognised; the message lists the columns.
    """
    lower = {name.strip().lower().replace(" ", "_"): name for name in reversed(columns) if name != taken}
    candidates = [lower[name] for name in known if name in lower]
    declared = [name for name in candidates if name in preferred] or list(preferred)
    if declared or candidates:
        return (declared or candidates)[0]
    raise DataError(
        f"{table} has no column of {what}s, its columns are {', '.join(map(repr, columns)) or 'none'}",
        expected=f"a column named {', '.join(known[:6])} or similar",
        remedy=f"Rename the column of {what}s to {known[0]!r}",
    )


class _Rows:
    """Images and label texts of one table or of a part of it."""

    def __init__(
        self,
        images: Sequence[Path | bytes],
        labels: Sequence[str],
        image_names: Sequence[str],
        places: Sequence[int],
        names: Sequence[str] | None,
        findings: Sequence[Finding],
        path: Path,
    ) -> None:
        self.images, self.labels, self.image_names = list(images), list(labels), list(image_names)
        self.places, self.names, self.findings, self.path = list(places), names, list(findings), path

    @classmethod
    def of(cls, table: Table) -> _Rows:
        names = list(table.columns)
        image_column = find_column(names, IMAGE_COLUMNS, "image", table.path.name)
        label_column = find_column(
            names,
            LABEL_COLUMNS,
            "label",
            table.path.name,
            preferred=list(table.label_names),
            taken=image_column,
        )
        stored = table.label_names.get(label_column)
        images: list[Path | bytes] = []
        labels, image_names, places, dropped = [], [], [], []
        for index, (image, label) in enumerate(
            zip(table.columns[image_column], table.columns[label_column], strict=True)
        ):
            content = _image_content(image, table.path)
            text = None if stored and label == UNKNOWN_LABEL else _label_text(label)
            if content is None or text is None:
                dropped.append(f"{table.path.name}#{index}")
                continue
            places.append(index)
            images.append(content)
            labels.append(text)
            image_names.append(_image_name(image, table.path, index))
        paths = [image for image in images if isinstance(image, Path)]
        if paths and len(paths) == len(images) and not any(path.exists() for path in paths):
            raise DataError(
                f"{table.path} names {number_of(len(paths), 'image file')} and none of them exists, such as "
                f"{paths[0]}",
                expected=f"paths relative to the folder {table.path.parent}, or absolute ones",
                remedy=f"Correct the column {image_column!r}, or move the table",
            )
        findings = list(table.findings)
        if dropped:
            findings.append(
                Finding(
                    "warning",
                    "incomplete-rows",
                    f"{number_of(len(dropped), 'row')} of {table.path.name} without an image or a label",
                    "Left out; complete or remove them",
                    tuple(dropped),
                )
            )
        return cls(
            images,
            labels,
            _made_unique(image_names),
            places,
            stored,
            findings,
            table.path,
        )

    def divide(self, table: Table) -> dict[SplitName, _Rows]:
        """Divide by the column of splits of the table, if there is one and it names a training split."""
        parts = rows_by_split(table.columns, lambda row: f"row {row} of {self.path}")
        if "train" not in parts:
            return {"train": self}
        index_of = {place: index for index, place in enumerate(self.places)}
        return {
            split: self._take([index_of[row] for row in rows if row in index_of])
            for split, rows in parts.items()
        }

    def name_labels(self, class_names: Sequence[str]) -> None:
        """Replace numbers by the names that the file stores."""
        known = set(class_names)
        total = number_of(len(known), "class", "classes")
        named = []
        for text in self.labels:
            is_index = text.isdigit() and int(text) < len(class_names)
            if not is_index and text not in known:
                raise DataError(
                    f"{self.path} has the label {text!r} but names {total}",
                    expected=f"labels from 0 to {len(class_names) - 1}",
                    remedy="Correct the labels, or the class names stored in the file",
                )
            named.append(class_names[int(text)] if is_index else text)
        self.labels = named

    def _take(self, indices: Sequence[int]) -> _Rows:
        return _Rows(
            [self.images[index] for index in indices],
            [self.labels[index] for index in indices],
            [self.image_names[index] for index in indices],
            [self.places[index] for index in indices],
            self.names,
            (),
            self.path,
        )


def _image_content(value: Any, table: Path) -> Path | bytes | None:
    if isinstance(value, Mapping):  # Hugging Face: bytes, or the path of a file
        value = value.get("bytes") if value.get("bytes") is not None else value.get("path")
    if isinstance(value, bytes | bytearray):
        return bytes(value)
    if value is None or not str(value).strip():
        return None
    if not isinstance(value, str):
        raise DataError(
            f"{table} holds images as {type(value).__name__}",
            expected="paths of image files, or their bytes",
            remedy="Store the images as encoded files (PNG, JPEG) in the table or beside it",
        )
    return table.parent / Path(value.strip()).expanduser()


def _image_name(value: Any, table: Path, index: int) -> str:
    if isinstance(value, str):
        return value.strip()
    return f"{table.name}#{index}"


def _label_text(value: Any) -> str | None:
    if value is None or (isinstance(value, float) and value != value):
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool | int | str | float):
        return str(value).strip() or None
    raise DataError(
        f"a label is {value!r}, of type {type(value).__name__}",
        expected="one class for each image, as text or a number",
        remedy="Write one label into each row; several labels for one image are not supported",
    )


def _made_unique(names: list[str]) -> list[str]:
    """Number the later ones of equal names, which rows that repeat a file have."""
    seen: dict[str, int] = {}
    unique = []
    for name in names:
        count = seen[name] = seen.get(name, 0) + 1
        unique.append(name if count == 1 else f"{name} ({count})")
    return unique
