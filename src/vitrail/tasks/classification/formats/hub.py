"""Hugging Face data sets: by name through the package ``datasets``, or a folder that it saved."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.data.dataset import ImageSplit, encode_labels, order_class_names
from vitrail.data.formats import Format, RawDataset
from vitrail.data.hub_sets import ColumnImages, HubSet, import_datasets, load_named, load_saved
from vitrail.data.tables import IMAGE_COLUMNS, LABEL_COLUMNS, find_column


def recognises(path: Path) -> bool:
    """Accept a folder that ``save_to_disk`` wrote."""
    return path.is_dir() and (
        (path / "dataset_dict.json").is_file() or (path / "dataset_info.json").is_file()
    )


def read(path: Path) -> RawDataset:
    """Read a saved data set.

    Raises:
        DataError: it is damaged or has no recognised columns.
    """
    return _convert(load_saved(path))


def read_by_name(name: str) -> RawDataset:
    """Read a data set by its name on the hub, ``owner/name``; what is in the local cache needs no network.

    Raises:
        DataError: there is none of that name, the network cannot be reached, or no column is recognised.
    """
    return _convert(load_named(name, lambda datasets: datasets.load_dataset(name)))


def _convert(loaded: HubSet) -> RawDataset:
    datasets, name, by_split = import_datasets(loaded.name), loaded.name, loaded.splits
    if "train" not in by_split:
        raise loaded.lacks("a split named train")
    features = by_split["train"].features
    images = [key for key, feature in features.items() if isinstance(feature, datasets.Image)]
    image_column = find_column(list(features), IMAGE_COLUMNS, "image", name, preferred=images)
    named = [key for key, feature in features.items() if isinstance(feature, datasets.ClassLabel)]
    label_column = find_column(
        list(features), LABEL_COLUMNS, "label", name, preferred=named, taken=image_column
    )
    feature = features[label_column]
    stored = tuple(feature.names) if isinstance(feature, datasets.ClassLabel) and feature.names else None
    values = {split: list(rows[label_column]) for split, rows in by_split.items()}
    class_names = stored or order_class_names(
        str(value) for part in values.values() for value in part if value is not None
    )
    splits = {}
    for split, rows in by_split.items():
        is_image = isinstance(features[image_column], datasets.Image)
        encoded = rows.cast_column(image_column, datasets.Image(decode=False)) if is_image else rows
        labels = _labels_of(values[split], class_names, are_numbers=stored is not None)
        usable = np.flatnonzero(labels >= 0)
        names = [f"{split}#{index}" for index in range(len(labels))]
        part = ImageSplit(ColumnImages(encoded, image_column), labels, names)
        splits[split] = part if len(usable) == len(part) else part.take(usable)
    return RawDataset(
        class_names=class_names, splits=splits, findings=loaded.findings, format="Hugging Face data set"
    )


def _labels_of(values: Sequence[Any], class_names: Sequence[str], *, are_numbers: bool) -> np.ndarray:
    """Return the class index of each row; -1, as the hub itself writes it, where the label is unknown."""
    labels = np.full(len(values), -1, dtype=np.int64)
    known = [place for place, value in enumerate(values) if value is not None]
    if are_numbers:
        labels[known] = [int(values[place]) for place in known]
    else:
        labels[known] = encode_labels([str(values[place]) for place in known], class_names)
    return labels


FORMAT = Format(
    name="Hugging Face data set",
    layout="a folder that save_to_disk of the package datasets wrote",
    recognises=recognises,
    read=read,
    rank=5,
)
