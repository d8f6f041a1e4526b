"""Tables with a column of images and a column of labels: CSV, TSV, JSON lines and parquet."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

from vitrail.core.errors import DataError
from vitrail.data.formats import Format, RawDataset
from vitrail.data.splits import SPLIT_NAMES, SplitName
from vitrail.data.tables import (
    IMAGE_COLUMNS,
    LABEL_COLUMNS,
    TABLE_SUFFIXES,
    Table,
    column_names,
    names_in_metadata,
    parquet_file,
    read_text_table,
    tables_to_dataset,
)

SHARD = re.compile(r"^(?P<split>[a-z]+)(-\d{5}-of-\d{5})?$")  # the Hugging Face hub's naming of parts


def recognises(path: Path) -> bool:
    """Accept a table, or a folder with ``train.csv`` or the like, or with one table that has the columns."""
    if path.is_file():
        return path.suffix.lower() in TABLE_SUFFIXES
    return path.is_dir() and bool(_tables_in(path))


def read(path: Path) -> RawDataset:
    """Read one table, or the tables of the splits in a folder.

    Raises:
        DataError: a table is damaged or has no recognised columns.
    """
    if path.is_file():
        return tables_to_dataset({"train": read_table([path])})
    return tables_to_dataset({split: read_table(files) for split, files in _tables_in(path).items()})


def read_table(paths: list[Path]) -> Table:
    """Read the files of one split; several are parts of one table.

    Raises:
        DataError: a file is damaged or empty.
    """
    parts = []
    for path in paths:
        parts.append(_read_file(path))
        if not any(len(column) for column in parts[-1].columns.values()):
            raise DataError(
                f"{path} holds no row",
                expected="a line of column names and a row for each image",
                remedy="Write the rows, or remove the file",
            )
    if len(parts) == 1:
        return parts[0]
    columns: dict[str, list[Any]] = {name: [] for name in parts[0].columns}
    for part in parts:
        if set(part.columns) != set(columns):
            raise DataError(
                f"{part.path} has other columns than {parts[0].path.name}",
                expected=f"the columns {', '.join(columns)}",
                remedy="Keep only parts of one table under this name",
            )
        for name, values in part.columns.items():
            columns[name].extend(values)
    findings = tuple(finding for part in parts for finding in part.findings)
    return Table(parts[0].path, columns, parts[0].label_names, findings)


def _tables_in(folder: Path) -> dict[SplitName, list[Path]]:
    """Return the tables of a folder by split; a folder without ``train`` may have one table alone."""
    for place in (folder, folder / "data"):
        if not place.is_dir():
            continue
        files = sorted(
            entry
            for entry in place.iterdir()
            if entry.suffix.lower() in TABLE_SUFFIXES and not entry.name.startswith(".") and entry.is_file()
        )
        found: dict[SplitName, list[Path]] = {}
        for file in files:
            match = SHARD.match(file.stem.lower())
            split = SPLIT_NAMES.get(match["split"]) if match else None
            if split is not None:
                found.setdefault(split, []).append(file)
        if "train" in found:
            return found
        if place == folder and len(files) == 1 and has_columns(files[0]):
            return {"train": files}
    return {}


def has_columns(path: Path) -> bool:
    """Tell whether a table names images and labels, so that a stray list of classes is not taken for data."""
    try:
        names = column_names(path)
    except (OSError, ValueError, ImportError, csv.Error, RecursionError):
        return False
    lower = {name.strip().lower().replace(" ", "_") for name in names}
    return bool(lower.intersection(IMAGE_COLUMNS)) and bool(lower.intersection(LABEL_COLUMNS))


def _read_file(path: Path) -> Table:
    if path.suffix.lower() == ".parquet":
        return _read_parquet(path)
    table = read_text_table(path)
    return Table(path, table.columns, {}, table.findings)


def _read_parquet(path: Path) -> Table:
    with parquet_file(path) as file:
        schema = file.schema_arrow
        wanted = [name for name in schema.names if not _is_bulky(name, schema.field(name).type)]
        content = file.read(columns=wanted)
        columns: dict[str, Any] = dict.fromkeys(schema.names, ())
        columns |= {name: content.column(name).to_pylist() for name in wanted}
    return Table(path, columns, names_in_metadata(schema.metadata))


def _is_bulky(name: str, kind: Any) -> bool:
    """Tell whether a column need not be read: lists and structures that cannot be an image or a label."""
    import pyarrow.types

    known = {*IMAGE_COLUMNS, *LABEL_COLUMNS}
    return pyarrow.types.is_nested(kind) and name.strip().lower().replace(" ", "_") not in known


FORMAT = Format(
    name="table",
    layout="a CSV, TSV, JSON lines or parquet file with a column of images and one of labels, or a folder "
    "with train.csv (and test.csv) or the like",
    recognises=recognises,
    read=read,
    rank=20,
)
