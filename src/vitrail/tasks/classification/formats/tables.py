"""Tables with an image and a label column: CSV, TSV, JSON lines, parquet, saved sets, the hub."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from vitrail.core.errors import DataError
from vitrail.data.dataset import ImageSplit, encode_labels, order_class_names
from vitrail.data.file_places import find_by_ends, is_image_name
from vitrail.data.findings import Finding, about, number_of
from vitrail.data.formats import HUB_FORMAT, Format, RawDataset
from vitrail.data.hub_sets import INFO_FILE, HubSet, load_named, load_saved
from vitrail.data.splits import SPLIT_NAMES, SplitName
from vitrail.data.tables import (
    IMAGE_COLUMNS,
    LABEL_COLUMNS,
    TABLE_SUFFIXES,
    Table,
    class_names_in,
    column_names,
    find_column,
    image_of_cell,
    join_parts,
    label_text,
    read_table,
    simplify,
    tables_in,
)

UNKNOWN_LABEL = -1  # marks an image without a label on the hub, where classes have names
MANY_NUMBERS = 10  # with decimals, above which they are measurements and no classes
NUMBER = re.compile(r"[-+]?\d*[.,]?\d+([eE][-+]?\d+)?")
PLAIN = re.compile(r"[a-z]+")


def recognises(path: Path) -> bool:
    """Accept a table, a folder with ``train.csv`` or the like, or one with a single table that has the
    columns.
    """
    if path.is_file():
        return path.suffix.lower() in TABLE_SUFFIXES
    return path.is_dir() and bool(_tables_of(path))


def read(path: Path, named: tuple[str, str] = ("", "")) -> RawDataset:
    """Read one table, or the tables of the splits in a folder.

    The columns of images and of labels are found by their names unless they are given.
    A single table may have a column named split, set, subset or partition. Rows without an image or a label
    are left out and reported.
    """
    files: Mapping[SplitName, list[Path]] = {"train": [path]} if path.is_file() else _tables_of(path)
    tables = {split: _read_parts(parts, named) for split, parts in files.items()}
    found = {split: _rows_of(table, *named) for split, table in tables.items()}
    rows = {split: part.rows for split, part in found.items()}
    if set(rows) == {"train"} and (parts := tables["train"].rows_by_split()):
        split_of = {index: split for split, indices in parts.items() for index in indices}
        rows = {split: [row for row in rows["train"] if split_of[row.number] == split] for split in parts}
    stored = next((part.class_names for part in found.values() if part.class_names), ())
    if stored and len(set(stored)) == len(stored):
        whole = next(iter(tables.values()))
        rows = {
            split: _name_labels(part, stored, tables.get(split, whole).path) for split, part in rows.items()
        }
        class_names = tuple(stored)
    else:
        class_names = order_class_names(row.label for part in rows.values() for row in part)
    splits = {
        split: ImageSplit(
            [row.image for row in part],
            encode_labels([row.label for row in part], class_names),
            [row.name for row in part],
        )
        for split, part in rows.items()
    }
    findings = tuple(finding for part in found.values() for finding in part.findings)
    return RawDataset(class_names=class_names, splits=splits, findings=findings)


def has_columns(path: Path) -> bool:
    """Return whether a table has image and label columns, unlike a stray list of classes."""
    lower = set(map(simplify, column_names(path)))
    return bool(lower.intersection(IMAGE_COLUMNS)) and bool(lower.intersection(LABEL_COLUMNS))


class _Row(NamedTuple):
    """A labelled image, and its number in the table."""

    number: int
    image: Path | bytes
    label: str
    name: str


class _Rows(NamedTuple):
    rows: list[_Row]
    class_names: Sequence[str]
    """Those that the file stores, if any."""
    findings: tuple[Finding, ...]


def _rows_of(table: Table, image_named: str, label_named: str) -> _Rows:
    """Return the rows of a table that have an image and a label; a finding names the others."""
    called, columns = table.path.name, list(table.columns)
    stored = class_names_in(table.features)
    image_column = find_column(columns, IMAGE_COLUMNS, "image", called, named=image_named)
    label_column = find_column(
        columns, LABEL_COLUMNS, "label", called, preferred=[*stored], taken=image_column, named=label_named
    )
    class_names = stored.get(label_column, ())
    rows, dropped = [], []
    seen: Counter[str] = Counter()  # rows that repeat a file are numbered
    values = zip(table.columns[image_column], table.columns[label_column], table.names, strict=True)
    for index, (image, label, name) in enumerate(values):
        content = image_of_cell(image, table.path)
        text = None if class_names and label == UNKNOWN_LABEL else label_text(label)
        if content is None or text is None:
            dropped.append(name)
            continue
        shown = image.strip() if isinstance(image, str) else name
        seen[shown] += 1
        rows.append(_Row(index, content, text, shown if seen[shown] == 1 else f"{shown} ({seen[shown]})"))
    elsewhere: list[Finding] = []
    paths = [row.image for row in rows if isinstance(row.image, Path)]
    if paths and len(paths) == len(rows) and not any(path.exists() for path in paths):
        cells = [str(table.columns[image_column][row.number]) for row in rows]
        found = find_by_ends(cells, table.path.parent)
        if not any(found):
            files = f"{number_of(len(rows), 'image file')} and none of them exists, such as {paths[0]}"
            are_swapped = all(is_image_name(row.label) for row in rows)
            raise DataError(
                f"{table.path} names {files}",
                expected=f"paths relative to the folder {table.path.parent}, or absolute ones",
                remedy=f"Exchange the names of the columns: {label_column!r} holds names of images"
                if are_swapped
                else f"Correct the column {image_column!r}, or move the table",
            )
        rows = [row._replace(image=file or row.image) for row, file in zip(rows, found, strict=True)]
        first, cell = next((file, cell) for file, cell in zip(found, cells, strict=True) if file)
        message = f"the images of {called} are found by the ends of their paths, such as {first} for {cell}"
        elsewhere.append(
            Finding("info", "images-elsewhere", message, "Nothing, if these are the images meant")
        )
    check_labels([row.label for row in rows], f"the column {label_column!r} of {table.path}")
    incomplete = about(
        dropped,
        "warning",
        "incomplete-rows",
        f"{number_of(len(dropped), 'row')} of {called} without an image or a label",
        "Left out; complete or remove them",
    )
    return _Rows(rows, class_names, (*table.findings, *elsewhere, *incomplete))


def check_labels(labels: Iterable[str], called: str, *, thing: str = "image") -> None:
    """Refuse labels that are several classes each, or measurements.

    Raises:
        DataError: they are.
    """
    distinct = set(labels)
    for sign in "|;":
        joined = sorted(label for label in distinct if sign in label.strip(sign))
        parts = Counter(part.strip() for label in distinct for part in label.split(sign) if part.strip())
        if joined and max(parts.values()) > 1:  # the same class alone, or with others
            raise DataError(
                f"{called} names several classes of one {thing}, such as {joined[0]!r}",
                expected=f"one class for each {thing}",
                remedy=f"Keep the one that matters; several labels of one {thing} cannot be learned",
            )
    if sum("." in label for label in distinct) > MANY_NUMBERS and all(map(NUMBER.fullmatch, distinct)):
        raise DataError(
            f"{called} holds {len(distinct)} different numbers, such as {min(distinct)}",
            expected="classes; a model that predicts numbers cannot be trained",
            remedy="Replace them by classes such as low and high, or name the column of classes 'label'",
        )


def _tables_of(folder: Path) -> dict[SplitName, list[Path]]:
    """Return the tables of a folder by split; without ``train``, its only table."""
    for parent in (folder, folder / "data"):
        tables = tables_in(parent)
        found: dict[SplitName, list[Path]] = {}
        for stem, files in tables.items():
            if PLAIN.fullmatch(stem.lower()) and (split := SPLIT_NAMES.get(stem.lower())) is not None:
                found.setdefault(split, []).extend(files)
        if "train" in found:
            return {split: sorted(files) for split, files in found.items()}
        files = [file for parts in tables.values() for file in parts]
        if parent == folder and len(files) == 1 and has_columns(files[0]):
            return {"train": files}
    return {}


def _read_parts(paths: Sequence[Path], named: tuple[str, str]) -> Table:
    parts = [
        read_table(path, wanted=lambda name, kind: name in named or _may_be_wanted(name, kind))
        for path in paths
    ]
    for part in parts:
        if not any(len(column) for column in part.columns.values()):
            raise DataError(
                f"{part.path} holds no row",
                expected="a line of column names and a row for each image",
                remedy="Write the rows, or remove the file",
            )
        if set(part.columns) != set(parts[0].columns):
            raise DataError(
                f"{part.path} has other columns than {parts[0].path.name}",
                expected=f"the columns {', '.join(parts[0].columns)}",
                remedy="Keep only parts of one table under this name",
            )
    return join_parts(parts)


def _may_be_wanted(name: str, kind: Any) -> bool:
    """Return whether a column may be an image or a label: no lists or structures."""
    import pyarrow.types

    return not pyarrow.types.is_nested(kind) or simplify(name) in {*IMAGE_COLUMNS, *LABEL_COLUMNS}


def _name_labels(rows: Sequence[_Row], class_names: Sequence[str], path: Path) -> list[_Row]:
    """Replace numbers by the class names that the file stores."""
    named = {name: name for name in class_names} | {str(i): name for i, name in enumerate(class_names)}
    for row in rows:
        if row.label not in named:
            classes = number_of(len(class_names), "class")
            raise DataError(
                f"{path} has the label {row.label!r} but names {classes}",
                expected=f"labels from 0 to {len(class_names) - 1}",
                remedy="Correct the labels, or the class names stored in the file",
            )
    return [row._replace(label=named[row.label]) for row in rows]


def read_by_name(name: str) -> RawDataset:
    """Read a data set by its hub name ``owner/name``; the local cache needs no network.

    Raises:
        DataError: there is none of that name, the network cannot be reached, or no column is recognised.
    """
    return _convert(load_named(name))


def _convert(loaded: HubSet) -> RawDataset:
    loaded.demand("train")
    features = loaded.splits["train"].features
    image_column = loaded.find_images(IMAGE_COLUMNS)
    named = loaded.of_type("ClassLabel")
    label_column = find_column(
        list(features), LABEL_COLUMNS, "label", loaded.name, preferred=named, taken=image_column
    )
    stored = tuple(features[label_column].names or ()) if label_column in named else ()
    values = {split: list(rows[label_column]) for split, rows in loaded.splits.items()}
    class_names = stored or order_class_names(
        str(value) for part in values.values() for value in part if value is not None
    )
    index_of = {name: index for index, name in enumerate(class_names)}
    splits = {}
    for split in loaded.splits:
        labels = [
            UNKNOWN_LABEL if value is None else int(value) if stored else index_of[str(value)]
            for value in values[split]
        ]
        images, names = loaded.images(split, image_column), loaded.row_names(split)
        part = ImageSplit(images, np.array(labels, dtype=np.int64), names)
        usable = np.flatnonzero(part.labels >= 0)
        splits[split] = part if len(usable) == len(part) else part.take(usable)
    return RawDataset(class_names=class_names, splits=splits, findings=loaded.findings, format=HUB_FORMAT)


FORMATS = (
    Format(
        name="table",
        layout="a CSV, TSV, JSON lines or parquet file with a column of images and one of labels, or a "
        "folder with train.csv (and test.csv) or the like",
        recognises=recognises,
        read=read,
        rank=20,
    ),
    Format(
        name=HUB_FORMAT,
        layout="a folder that save_to_disk of the package datasets wrote",
        recognises=lambda path: any((path / name).is_file() for name in ("dataset_dict.json", INFO_FILE)),
        read=lambda path: _convert(load_saved(path)),
        rank=5,
    ),
)
