"""Hugging Face columns of objects: a saved data set, a name, Parquet, or images with a metadata.jsonl.

The layout: https://huggingface.co/docs/datasets/object_detection. A column ``objects`` holds the boxes and
classes of each image, as lists of boxes and of classes or as a list of objects with a box and a class each.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.core.errors import DataError
from vitrail.data.file_places import split_folders
from vitrail.data.formats import Format
from vitrail.data.hub_sets import HubSet, cached_features, is_saved, load_named, load_saved, saved_features
from vitrail.data.splits import SplitName, split_of
from vitrail.data.tables import (
    IMAGE_COLUMNS,
    Table,
    column_fields,
    find_column,
    image_of_cell,
    join_parts,
    read_table,
    tables_of,
)
from vitrail.tasks.detection.assembly import (
    AnnotatedImage,
    Classes,
    Reading,
    assemble,
    claimed_size,
    whole_number,
)
from vitrail.tasks.detection.box_format import choose_format
from vitrail.tasks.detection.dataset import RawBoxes

OBJECT_COLUMNS = ("objects", "object", "annotations")
BOX_FIELDS = ("bbox", "bboxes", "boxes", "box", "bbox_xyxy", "bbox_xywh", "boxes_xyxy", "boxes_xywh")
CLASS_FIELDS = (
    "category", "categories", "category_id", "label", "labels", "label_id", "class", "classes", "class_id",
    "class_label", "name",
)  # fmt: skip
CROWD_FIELDS = ("iscrowd", "is_crowd")
METADATA = "metadata.jsonl"
PARQUET = (".parquet",)
SIZES = ("height", "width")
TELLING = re.compile(r"object[-_]?detection|detection-datasets/|bbox|bounding[-_]?box", re.I)
Found = tuple[str, str, str]
"""The column of objects, and its fields of boxes and of classes."""


def recognises(path: Path) -> bool:
    """Accept a source with a column of objects that have boxes and classes."""
    if is_saved(path):
        return any(find_objects(described_fields(features)) for features in saved_features(path))
    if any(find_objects(column_fields(file)) for file in _metadata_files(path).values()):
        return True
    files = next(iter(tables_of(path, PARQUET).values()), [])
    return bool(files) and find_objects(column_fields(files[0])) is not None


def read(path: Path) -> RawBoxes:
    """Read a saved data set, Parquet files, or the images that a metadata.jsonl lists.

    Raises:
        DataError: a file is damaged, a package is not installed, or a column is malformed.
    """
    if is_saved(path):
        return _convert(load_saved(path))
    reading = Reading()
    metadata = _metadata_files(path)
    tables = {split: read_table(file) for split, file in metadata.items()} or _read_parquet(path, reading)
    root = (path if path.is_dir() else path.parent) if metadata else None
    is_alone = len(tables) == 1 and "unread-splits" not in reading.notes
    names: list[str] | None = None
    for split, table in tables.items():
        found = _demand(find_objects(table.fields), list(table.columns), str(table.path))
        names = names or described_names(table.features, found[0], found[2])
        # a split column divides a training table that is alone
        parts = table.rows_by_split() if split == "train" and is_alone else {}
        for part, rows in (parts or {split: list(range(len(table.names)))}).items():
            _read_rows(reading, part, table, rows, found, root)
    return _join(reading, found, names)


def is_of_boxes(name: str) -> bool:
    """Guess offline whether a data set of the hub holds boxes: by its name, or the local cache."""
    if TELLING.search(name):
        return True
    return any(find_objects(described_fields(features)) for features in cached_features(name))


def read_by_name(name: str) -> RawBoxes:
    """Read a data set by its hub name, ``owner/name``; the local cache needs no network.

    Raises:
        DataError: no such data set exists, the network cannot be reached, or no column is recognised.
    """
    return _convert(load_named(name))


def find_objects(fields_of: Mapping[str, Sequence[str]]) -> Found | None:
    """Find the column of objects; None if there is none."""
    for column in OBJECT_COLUMNS:
        fields = fields_of.get(column, ())
        box = next((name for name in BOX_FIELDS if name in fields), None)
        label = next((name for name in CLASS_FIELDS if name in fields), None)
        if box is not None and label is not None:
            return column, box, label
    return None


def described_fields(features: Any) -> dict[str, list[str]]:
    """Return the fields of each column of a Hugging Face description of features."""
    if not isinstance(features, Mapping):
        return {}
    inner = {str(column): _unwrap(feature) for column, feature in features.items()}
    return {column: list(feature) for column, feature in inner.items() if "_type" not in feature}


def described_names(features: Any, column: str, field: str) -> list[str] | None:
    """Return the class names that such a description declares for a field of a column, or None."""
    feature = _unwrap(_unwrap(features.get(column)).get(field)) if isinstance(features, Mapping) else {}
    names = feature.get("names")
    return [str(name) for name in names] if isinstance(names, list) and names else None


def _join(reading: Reading, found: Found, names: Sequence[str] | None) -> RawBoxes:
    """Choose the format of the boxes of all splits."""
    classes = _classes(reading, names)
    boxes, sizes = [], []
    for split, entries in reading.annotated.items():
        for entry, size in zip(entries, reading.sizes_of(split), strict=True):
            boxes += [box.numbers for box in entry.boxes]
            sizes += [size] * len(entry.boxes)
    together = np.array(boxes, dtype=np.float64).reshape(-1, 4)
    box_format, choice = choose_format(together, np.array(sizes, dtype=np.int64).reshape(-1, 2), found[1])
    reading.findings.append(choice)
    return assemble(reading, classes, box_format=box_format)


def _convert(loaded: HubSet) -> RawBoxes:
    loaded.demand()
    features, described = loaded.features, loaded.features.to_dict()
    found = _demand(find_objects(described_fields(described)), list(features), loaded.name)
    column = loaded.find_images(IMAGE_COLUMNS)
    reading = Reading(findings=list(loaded.findings))
    for split, rows in loaded.splits.items():
        sizes = [rows[name][:] for name in SIZES] if set(SIZES) <= set(features) else None
        reading.images[split] = loaded.images(split, column)
        _annotate(reading, split, loaded.row_names(split), rows[found[0]][:], sizes, found)
    return _join(reading, found, described_names(described, found[0], found[2]))


def _read_parquet(path: Path, reading: Reading) -> dict[SplitName, Table]:
    tables: dict[SplitName, Table] = {}
    by_stem = tables_of(path, PARQUET)
    for stem, files in by_stem.items():
        split = split_of(stem) or ("train" if len(by_stem) == 1 else None)
        if split is None or split in tables:
            reading.note("unread-splits", stem)
            continue
        tables[split] = join_parts([read_table(file) for file in files])
    if not tables:
        raise DataError(
            f"the parquet files of {path} are of no known split: {', '.join(by_stem)}",
            expected="train, validation or test in their names",
            remedy="Rename them",
        )
    return tables


def _read_rows(
    reading: Reading, split: SplitName, table: Table, rows: Sequence[int], found: Found, root: Path | None
) -> None:
    file, columns = table.path, table.columns
    column = find_column(list(columns), IMAGE_COLUMNS, "image", file)
    images, names, kept = [], [], []
    for row in rows:
        image, called = image_of_cell(columns[column][row], file, is_bound=True), table.names[row]
        if isinstance(image, Path) and root is not None:
            called = os.path.relpath(image, root)
        if image is None or (isinstance(image, Path) and not image.is_file()):
            reading.note("missing-images", called)
            continue
        images.append(image)
        names.append(Path(called).as_posix())
        kept.append(row)
    if not images:
        missing = reading.notes.get("missing-images")
        raise DataError(
            f"none of the {len(rows)} images of {file} is there, such as {missing[-1]}"
            if missing
            else f"{file} holds no row",
            expected=f"image files relative to {file.parent}, or their bytes",
            remedy=f"Put the images there, or correct the column {column!r}",
        )
    reading.images[split] = images
    used = table.take(kept).columns
    sizes = [used[name] for name in SIZES] if set(SIZES) <= set(columns) else None
    _annotate(reading, split, names, used[found[0]], sizes, found)


def _demand(found: Found | None, columns: Sequence[str], called: str) -> Found:
    if found is None:
        raise DataError(
            f"{called} has no column of objects with boxes and classes, its columns are "
            + (", ".join(map(repr, columns)) or "none"),
            expected="a column 'objects' with the fields 'bbox' and 'category'",
            remedy="Rename the column and its fields",
        )
    return found


def _metadata_files(path: Path) -> dict[SplitName, Path]:
    if path.is_file():
        return {split_of(path.parent.name) or "train": path} if path.name == METADATA else {}
    if not path.is_dir():
        return {}
    if (path / METADATA).is_file():
        return {"train": path / METADATA}
    files = {split: folder / METADATA for split, folder in split_folders(path).items()}
    return {split: file for split, file in files.items() if file.is_file()}


def _annotate(
    reading: Reading,
    split: SplitName,
    names: Sequence[str],
    objects: Sequence[Any],
    sizes: Sequence[Sequence[Any]] | None,
    found: Found,
) -> None:
    annotated = reading.annotated.setdefault(split, [])
    for row, (name, value) in enumerate(zip(names, objects, strict=True)):
        entry = AnnotatedImage(None, name)
        for position, (box, label, crowd) in enumerate(_objects(value, found)):
            key = label if isinstance(label, str) else whole_number(label)
            called = f"{name}: object {position} ({box!r:.60}, {label!r:.30})"
            is_crowd = whole_number(crowd) == 1 or crowd is True
            reading.add_box(entry, box, key, called, is_crowd=is_crowd)
        if sizes is not None:
            entry.claimed_size = claimed_size(*(side[row] for side in sizes))
        annotated.append(entry)


def _objects(value: Any, found: Found) -> Iterator[tuple[Any, Any, Any]]:
    """Yield box, class and crowd flag of each object of a row, in either form."""
    _, box, label = found
    if isinstance(value, Mapping):
        boxes, labels = _listed(value.get(box)), _listed(value.get(label))
        crowds = next((_listed(value[name]) for name in CROWD_FIELDS if value.get(name) is not None), [])
        yield from itertools.zip_longest(boxes, labels, crowds[: max(len(boxes), len(labels))])
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        for item in value:
            is_object = isinstance(item, Mapping)
            crowd = next((item[name] for name in CROWD_FIELDS if is_object and name in item), None)
            yield (item.get(box), item.get(label), crowd) if is_object else (item, None, None)
    elif value is not None:
        yield value, None, None


def _listed(values: Any) -> list[Any]:
    return list(values) if isinstance(values, Sequence | np.ndarray) and not isinstance(values, str) else []


def _classes(reading: Reading, names: Sequence[str] | None) -> Classes:
    """Return the declared classes; else those that occur, by name, or by id if they have none."""
    images = [image for images in reading.annotated.values() for image in images]
    if names is not None:
        id_of: dict[int | str, int] = {name: index for index, name in enumerate(names)}
        for image in images:
            image.boxes = [box._replace(key=id_of.get(box.key, box.key)) for box in image.boxes]
        return Classes.of_ids(dict(enumerate(names)), reading)
    used = {box.key for image in images for box in image.boxes}
    texts = {key for key in used if isinstance(key, str)}
    ids = sorted(key for key in used if isinstance(key, int))
    if texts and ids:
        raise DataError(
            f"classes are texts ({min(texts)!r}) in some rows and numbers in others",
            expected="one of both",
            remedy="Write the names of all classes, or the ids of all",
        )
    if texts:
        return Classes.of_names(texts)
    for class_id in ids:
        reading.note("unnamed-classes", str(class_id))
    return Classes.of_ids({class_id: str(class_id) for class_id in ids}, reading)


def _unwrap(feature: Any) -> dict[str, Any]:
    """Unwrap lists of features: a mapping of fields, or the description of one value."""
    while True:
        if isinstance(feature, list) and len(feature) == 1:
            feature = feature[0]
        elif isinstance(feature, Mapping) and "_type" in feature and "feature" in feature:
            feature = feature["feature"]
        else:
            return dict(feature) if isinstance(feature, Mapping) else {"_type": "none"}


FORMAT = Format(
    name="Hugging Face objects",
    layout="Hugging Face columns: a data set that save_to_disk wrote, parquet files, or metadata.jsonl "
    "beside images, with a column objects of bbox and category",
    suffixes=(".parquet",),
    recognises=recognises,
    read=read,
    rank=5,
)
