"""Hugging Face columns of objects: a saved data set, a name, parquet, or images with a metadata.jsonl."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vitrail.core.errors import DataError
from vitrail.data.file_places import existing, split_folders, split_of
from vitrail.data.hub_sets import ColumnImages, HubSet, import_datasets, load_named, load_saved
from vitrail.data.splits import SplitName, rows_by_split
from vitrail.data.tables import IMAGE_COLUMNS, arrow_fields, find_column, load_parquet
from vitrail.tasks.classification.formats.tables import read_table
from vitrail.tasks.detection.columns import (
    BoxTable,
    described_fields,
    described_names,
    find_objects,
    image_of,
    tables_to_boxes,
)
from vitrail.tasks.detection.formats.contract import DetectionFormat, RawBoxes
from vitrail.tasks.detection.notes import Notes
from vitrail.tasks.translation.columns import tables_of

INFO_FILE = "dataset_info.json"
METADATA = "metadata.jsonl"
PARQUET = (".parquet",)
PEEK = 65536  # bytes of a table of lines that a cheap look reads
TELLING = re.compile(r"object[-_]?detection|detection-datasets/|bbox|bounding[-_]?box", re.I)
Found = tuple[str, str, str]


def recognises(path: Path) -> bool:
    """Accept what is described, or begins, with a column of objects that have boxes and classes."""
    if (path / "dataset_dict.json").is_file() or (path / "state.json").is_file():
        return any(_described(file) is not None for file in [path / INFO_FILE, *path.glob(f"*/{INFO_FILE}")])
    if any(_begins_with_objects(file) for file in _metadata_files(path).values()):
        return True
    files = next(iter(_parquet_files(path).values()), [])
    return bool(files) and _schema_of(files[0]) is not None


def read(path: Path) -> RawBoxes:
    """Read a saved data set, parquet files, or the images that a metadata.jsonl lists.

    Raises:
        DataError: a file is damaged, a package is not installed, or a column is not what it must be.
    """
    if (path / "dataset_dict.json").is_file() or (path / "state.json").is_file():
        return _convert(load_saved(path))
    metadata = _metadata_files(path)
    return _read_metadata(path, metadata) if metadata else _read_parquet(path)


def is_of_boxes(name: str) -> bool:
    """Guess without a network whether a data set of the hub holds boxes: by its name, or the local cache."""
    if TELLING.search(name):
        return True
    home = Path(os.environ.get("HF_HOME", "~/.cache/huggingface")).expanduser()
    cache = Path(os.environ.get("HF_DATASETS_CACHE", home / "datasets")).expanduser()
    folder = cache / name.lower().replace("/", "___", 1)
    return any(_described(file) is not None for file in sorted(folder.rglob(INFO_FILE)))


def read_by_name(name: str) -> RawBoxes:
    """Read a data set by its name on the hub, ``owner/name``; what is in the local cache needs no network.

    Raises:
        DataError: there is none of that name, the network cannot be reached, or no column is recognised.
    """
    return _convert(load_named(name, lambda datasets: datasets.load_dataset(name)))


def _convert(loaded: HubSet) -> RawBoxes:
    datasets = import_datasets(loaded.name)
    if not loaded.splits:
        raise loaded.lacks("a split named train, validation or test")
    features = next(iter(loaded.splits.values())).features
    described = features.to_dict()
    found = _demand(find_objects(described_fields(described)), list(features), loaded.name)
    images = [key for key, feature in features.items() if isinstance(feature, datasets.Image)]
    column = find_column(list(features), IMAGE_COLUMNS, "image", loaded.name, preferred=images)
    tables: dict[SplitName, BoxTable] = {}
    for split, rows in loaded.splits.items():
        encoded = rows.cast_column(column, datasets.Image(decode=False)) if column in images else rows
        sizes = None
        if {"height", "width"} <= set(features):
            sizes = list(zip(rows["height"][:], rows["width"][:], strict=True))
        tables[split] = BoxTable(
            f"the split {loaded.found[split]} of {loaded.name}",
            [f"{split}#{index}" for index in range(len(rows))],
            ColumnImages(encoded, column),
            rows[found[0]][:],
            sizes,
        )
    notes = Notes()
    for finding in loaded.findings:
        notes.add_finding(finding)
    return tables_to_boxes(tables, found, described_names(described, found[0], found[2]), notes)


def _read_parquet(path: Path) -> RawBoxes:
    notes = Notes()
    tables: dict[SplitName, BoxTable] = {}
    names: list[str] | None = None
    found: Found | None = None
    by_stem = _parquet_files(path)
    for stem, files in by_stem.items():
        split = split_of(stem) or ("train" if len(by_stem) == 1 else None)
        if split is None or split in tables:
            notes.add("unread-splits", stem)
            continue
        columns: dict[str, list[Any]] = {}
        for file in files:
            part, features = load_parquet(file)
            found = _demand(find_objects(arrow_fields(part.schema)), part.column_names, str(file))
            names = names or described_names(features, found[0], found[2])
            for name in part.column_names:
                columns.setdefault(name, []).extend(part.column(name).to_pylist())
        assert found is not None
        tables |= _to_tables(files[0], columns, found, notes, split, is_alone=len(by_stem) == 1)
    if found is None:
        raise DataError(
            f"the parquet files of {path} are of no known split: {', '.join(by_stem)}",
            expected="train, validation or test in their names",
            remedy="Rename them",
        )
    return tables_to_boxes(tables, found, names, notes)


def _read_metadata(path: Path, files: Mapping[SplitName, Path]) -> RawBoxes:
    notes = Notes()
    tables: dict[SplitName, BoxTable] = {}
    found: Found | None = None
    for split, file in files.items():
        table = read_table([file])
        fields = {
            name: sorted({key for value in values for key in _keys(value)})
            for name, values in table.columns.items()
        }
        found = _demand(find_objects(fields), list(table.columns), str(file))
        columns = {name: list(values) for name, values in table.columns.items()}
        root = path if path.is_dir() else path.parent
        tables |= _to_tables(file, columns, found, notes, split, is_alone=len(files) == 1, root=root)
    assert found is not None
    return tables_to_boxes(tables, found, None, notes)


def _to_tables(
    file: Path,
    columns: Mapping[str, Sequence[Any]],
    found: Found,
    notes: Notes,
    split: SplitName,
    *,
    is_alone: bool,
    root: Path | None = None,
) -> dict[SplitName, BoxTable]:
    """Return the rows that have an image; a column of splits divides a training table that is alone."""
    parts: Mapping[SplitName, Sequence[int]] = {}
    if is_alone and split == "train":
        parts = rows_by_split(columns, lambda row: f"row {row} of {file}")
    parts = parts or {split: range(len(columns[found[0]]))}
    return {part: _to_table(file, columns, rows, found, notes, root) for part, rows in parts.items()}


def _to_table(
    file: Path,
    columns: Mapping[str, Sequence[Any]],
    rows: Sequence[int],
    found: Found,
    notes: Notes,
    root: Path | None,
) -> BoxTable:
    """Return those of some rows that have an image."""
    column = find_column(list(columns), IMAGE_COLUMNS, "image", file)
    images, names, kept = [], [], []
    for row in rows:
        value = columns[column][row]
        image = image_of(value, file.parent, f"the cell {column!r} of row {row} of {file}")
        called = f"{file.name}#{row}"
        if isinstance(image, Path) and root is not None:
            called = os.path.relpath(image, root)
        if image is None or (isinstance(image, Path) and not image.is_file()):
            notes.add("missing-images", called)
            continue
        images.append(image)
        names.append(Path(called).as_posix())
        kept.append(row)
    if not images:
        missing = notes.of("missing-images")
        raise DataError(
            f"none of the {len(rows)} images of {file} is there, such as {missing[-1]}"
            if missing
            else f"{file} holds no row",
            expected=f"image files relative to {file.parent}, or their bytes",
            remedy=f"Put the images there, or correct the column {column!r}",
        )
    sizes = None
    if {"height", "width"} <= set(columns):
        sizes = [(columns["height"][row], columns["width"][row]) for row in kept]
    return BoxTable(str(file), names, images, [columns[found[0]][row] for row in kept], sizes)


def _demand(found: Found | None, columns: Sequence[str], called: str) -> Found:
    if found is None:
        raise DataError(
            f"{called} has no column of objects with boxes and classes, its columns are "
            + (", ".join(map(repr, columns)) or "none"),
            expected="a column 'objects' with the fields 'bbox' and 'category'",
            remedy="Rename the column and its fields",
        )
    return found


def _described(file: Path) -> Found | None:
    try:
        return find_objects(described_fields(json.loads(file.read_text(encoding="utf-8"))["features"]))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _metadata_files(path: Path) -> dict[SplitName, Path]:
    """Return the lists of images in a folder or in those of its splits."""
    if path.is_file():
        return {split_of(path.parent.name) or "train": path} if path.name == METADATA else {}
    if not path.is_dir():
        return {}
    if (path / METADATA).is_file():
        return {"train": path / METADATA}
    files = {split: folder / METADATA for split, folder in split_folders(path).items()}
    return {split: file for split, file in files.items() if file.is_file()}


def _begins_with_objects(file: Path) -> bool:
    try:
        with file.open("rb") as lines:
            row = json.loads(lines.readline(PEEK))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(row, Mapping) and any(
        find_objects({column: list(_keys(row.get(column)))}) is not None for column in row
    )


def _keys(value: Any) -> list[str]:
    """Return the fields of an object, or of those in a list."""
    if isinstance(value, Mapping):
        return [str(key) for key in value]
    if isinstance(value, list):
        return [str(key) for item in value if isinstance(item, Mapping) for key in item]
    return []


def _parquet_files(path: Path) -> dict[str, list[Path]]:
    try:
        if path.is_dir() and not any(_has_parquet(place) for place in existing([path, path / "data"])):
            return {}  # told by names alone, which is faster in a folder of many images
        return tables_of(path, PARQUET) if path.exists() else {}
    except OSError:
        return {}


def _has_parquet(folder: Path) -> bool:
    with os.scandir(folder) as entries:
        return any(entry.name.lower().endswith(PARQUET) for entry in entries)


def _schema_of(file: Path) -> Found | None:
    try:
        import pyarrow.parquet

        return find_objects(arrow_fields(pyarrow.parquet.read_schema(file)))
    except (ImportError, OSError, ValueError):  # those of pyarrow are the latter two
        return None


FORMAT = DetectionFormat(
    name="Hugging Face objects",
    layout="Hugging Face columns: a data set that save_to_disk wrote, parquet files, or metadata.jsonl "
    "beside images, with a column objects of bbox and category",
    suffixes=(".parquet",),
    recognises=recognises,
    read=read,
    rank=5,
)
