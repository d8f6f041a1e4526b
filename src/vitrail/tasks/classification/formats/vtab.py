"""A task of VTAB-1k: images beside the lists train800.txt, val200.txt and test.txt."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from vitrail.core.errors import DataError
from vitrail.data.dataset import ImageSplit
from vitrail.data.formats import Format, RawDataset
from vitrail.data.splits import SplitName

LISTS: dict[SplitName, str] = {"train": "train800.txt", "validation": "val200.txt", "test": "test.txt"}


def recognises(path: Path) -> bool:
    """Accept a folder with all three lists."""
    return path.is_dir() and all((path / name).is_file() for name in LISTS.values())


def read(path: Path) -> RawDataset:
    """Read the listed images; the classes are numbers.

    Raises:
        DataError: a line is not a path and a number, or a list is empty.
    """
    rows = {split: _read_list(path / name) for split, name in LISTS.items()}
    num_classes = 1 + max(label for entries in rows.values() for _, label in entries)
    splits: dict[SplitName, ImageSplit] = {
        split: ImageSplit(
            [path / name for name, _ in entries],
            np.array([label for _, label in entries], dtype=np.int64),
            [name for name, _ in entries],
        )
        for split, entries in rows.items()
    }
    names = tuple(str(label) for label in range(num_classes))
    # No flipping: half of the tasks ask for a location, a count or an angle.
    return RawDataset(class_names=names, splits=splits, upright=True)


def _read_list(path: Path) -> list[tuple[str, int]]:
    entries = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip():
            continue
        name, _, label = line.strip().rpartition(" ")
        if not name or not label.isdigit():
            raise DataError(
                f"line {number} of {path} is {line.strip()!r}",
                expected="the path of an image, a space, and the number of its class from 0",
                remedy="Write the list again",
            )
        entries.append((name, int(label)))
    if not entries:
        raise DataError(
            f"{path} names no image", expected="a line for each image", remedy="Write the list again"
        )
    return entries


FORMAT = Format(
    name="VTAB lists",
    layout="a task of VTAB-1k: train800.txt, val200.txt and test.txt with an image and a number in each line",
    recognises=recognises,
    read=read,
    rank=14,
)
