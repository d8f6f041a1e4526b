"""Rows with a column ``objects``, the boxes and classes of each image, as Hugging Face data sets have it.

The layout: https://huggingface.co/docs/datasets/object_detection. Two forms are read: lists of boxes and of
classes, or a list of objects with a box and a class each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.core.errors import DataError
from vitrail.data.splits import SplitName
from vitrail.tasks.detection.assembly import (
    AnnotatedImage,
    Classes,
    assemble,
    claimed_size,
    finite_numbers,
    sizes_of,
    whole_number,
)
from vitrail.tasks.detection.dataset import SourceFacts
from vitrail.tasks.detection.format_choice import choose_format
from vitrail.tasks.detection.formats.contract import RawBoxes
from vitrail.tasks.detection.notes import Notes

OBJECT_COLUMNS = ("objects", "object", "annotations")
BOX_FIELDS = ("bbox", "bboxes", "boxes", "box", "bbox_xyxy", "bbox_xywh", "boxes_xyxy", "boxes_xywh")
CLASS_FIELDS = (
    "category", "categories", "category_id", "label", "labels", "label_id", "class", "classes", "class_id",
    "class_label", "name",
)  # fmt: skip
CROWD_FIELDS = ("iscrowd", "is_crowd")


@dataclass(frozen=True)
class BoxTable:
    """The columns of one split."""

    called: str
    """What messages call it."""
    names: Sequence[str]
    """What to call each image."""
    images: Sequence[Any]
    """Each image: a file or bytes."""
    objects: Sequence[Any]
    """The value of the column of objects of each row."""
    sizes: Sequence[tuple[Any, Any]] | None = None
    """Height and width of each image, where columns give them."""


def find_objects(fields_of: Mapping[str, Sequence[str]]) -> tuple[str, str, str] | None:
    """Return the column of objects, its field of boxes and its field of classes; None where there is none.

    Args:
        fields_of: the fields of each column that has any, by its name.
    """
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
    """Return the class names that such a description gives to a field of a column, or None."""
    feature = _unwrap(_unwrap(features.get(column)).get(field)) if isinstance(features, Mapping) else {}
    names = feature.get("names")
    return [str(name) for name in names] if isinstance(names, list) and names else None


def tables_to_boxes(
    tables: Mapping[SplitName, BoxTable],
    found: tuple[str, str, str],
    names: Sequence[str] | None,
    notes: Notes,
) -> RawBoxes:
    """Join the tables of all splits.

    Args:
        tables: the columns of each split.
        found: the column of objects and its fields of boxes and classes, as ``find_objects`` returns them.
        names: the class names by id that the source declares, or None.
        notes: takes what is noticed.

    Raises:
        DataError: classes are neither names nor ids.
    """
    annotated = {split: _annotate(table, found, notes) for split, table in tables.items()}
    images = {split: table.images for split, table in tables.items()}
    classes = _classes(annotated, names, notes)
    numbers, sizes = [], []
    for split, entries in annotated.items():
        of_images = sizes_of(images[split], entries)
        for entry, size in zip(entries, of_images, strict=True):
            numbers += entry.boxes
            sizes += [size] * len(entry.boxes)
            entry.header_size = (int(size[0]), int(size[1]))
    together = np.array(numbers, dtype=np.float64).reshape(-1, 4)
    box_format, choice = choose_format(together, np.array(sizes, dtype=np.int64).reshape(-1, 2), found[1])
    notes.add_finding(choice)
    return assemble(
        annotated, classes, box_format=box_format, notes=notes, facts=SourceFacts(), images=images
    )


def image_of(value: Any, folder: Path, called: str) -> Path | bytes | None:
    """Return what a cell of the column of images holds: bytes, a file relative to a folder, or nothing.

    Raises:
        DataError: it is neither.
    """
    if isinstance(value, Mapping):
        value = value.get("bytes") if value.get("bytes") is not None else value.get("path")
    if isinstance(value, bytes | bytearray):
        return bytes(value)
    if value is None or value == "":
        return None
    if isinstance(value, str):
        return folder / value
    raise DataError(
        f"{called} is of type {type(value).__name__}",
        expected="the bytes of an image file, or its path",
        remedy="Store the images as encoded files (PNG, JPEG)",
    )


def _annotate(table: BoxTable, found: tuple[str, str, str], notes: Notes) -> list[AnnotatedImage]:
    annotated = []
    for row, (name, value) in enumerate(zip(table.names, table.objects, strict=True)):
        entry = AnnotatedImage(None, name)
        for position, (box, label, crowd) in enumerate(_objects(value, found)):
            is_list = isinstance(box, Sequence | np.ndarray) and not isinstance(box, str | bytes)
            numbers = finite_numbers(list(box)) if is_list and len(box) == 4 else None
            key = label if isinstance(label, str) and label else whole_number(label)
            if numbers is None or key is None:
                notes.add("malformed-boxes", f"{name}: object {position} ({box!r:.60}, {label!r:.30})")
                continue
            entry.boxes.append(numbers)
            entry.classes.append(key)
            entry.is_crowd.append(whole_number(crowd) == 1 or crowd is True)
        if table.sizes is not None:
            entry.claimed_size = claimed_size(*table.sizes[row])
        annotated.append(entry)
    return annotated


def _objects(value: Any, found: tuple[str, str, str]) -> Iterator[tuple[Any, Any, Any]]:
    """Yield box, class and crowd mark of each object of a row, in whichever form they are."""
    _, box, label = found
    if isinstance(value, Mapping):
        boxes, labels = value.get(box), value.get(label)
        boxes, labels = _listed(boxes), _listed(labels)
        crowds = next((_listed(value[name]) for name in CROWD_FIELDS if value.get(name) is not None), [])
        for index in range(max(len(boxes), len(labels))):
            yield (*(part[index] if index < len(part) else None for part in (boxes, labels, crowds)),)  # type: ignore[misc]
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        for item in value:
            is_object = isinstance(item, Mapping)
            crowd = next((item[name] for name in CROWD_FIELDS if is_object and name in item), None)
            yield (item.get(box), item.get(label), crowd) if is_object else (item, None, None)
    elif value is not None:
        yield value, None, None


def _listed(values: Any) -> list[Any]:
    return list(values) if isinstance(values, Sequence | np.ndarray) and not isinstance(values, str) else []


def _classes(
    annotated: Mapping[SplitName, Sequence[AnnotatedImage]], names: Sequence[str] | None, notes: Notes
) -> Classes:
    """Return the declared classes; else those that occur, by name, or by id where they have none.

    Raises:
        DataError: some classes are names and others are ids.
    """
    used = {key for entries in annotated.values() for entry in entries for key in entry.classes}
    texts = {key for key in used if isinstance(key, str)}
    if names is not None:
        id_of = {name: index for index, name in enumerate(names)}
        for entries in annotated.values():
            for entry in entries:
                entry.classes = [
                    id_of.get(key, key) if isinstance(key, str) else key for key in entry.classes
                ]
        return Classes.of_ids(dict(enumerate(names)), notes)
    if texts and len(texts) < len(used):
        raise DataError(
            f"classes are texts ({sorted(texts)[0]!r}) in some rows and numbers in others",
            expected="one of both",
            remedy="Write the names of all classes, or the ids of all",
        )
    if texts:
        return Classes.of_names(texts)
    for key in sorted(key for key in used if isinstance(key, int)):
        notes.add("unnamed-classes", str(key))
    return Classes.of_ids({key: str(key) for key in used if isinstance(key, int)}, notes)


def _unwrap(feature: Any) -> dict[str, Any]:
    """Return what lists of features hold: a mapping of fields, or the description of one value."""
    while True:
        if isinstance(feature, list) and len(feature) == 1:
            feature = feature[0]
        elif isinstance(feature, Mapping) and "_type" in feature and "feature" in feature:
            feature = feature["feature"]
        else:
            return dict(feature) if isinstance(feature, Mapping) else {"_type": "none"}
