"""The Oxford-IIIT Pet data set as published: images beside annotations/trainval.txt and test.txt."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from vitrail.core.errors import DataError
from vitrail.data.dataset import ImageSplit
from vitrail.data.formats import Format, RawDataset
from vitrail.data.splits import SplitName

LISTS: dict[SplitName, str] = {"train": "trainval.txt", "test": "test.txt"}


def recognises(path: Path) -> bool:
    """Accept a folder with both lists in the published form."""
    lists = [path / "annotations" / name for name in LISTS.values()]
    if not (path / "images").is_dir() or not all(listed.is_file() for listed in lists):
        return False
    try:
        with lists[0].open(encoding="utf-8", errors="strict") as file:
            return _parse(file.readline()) is not None
    except (OSError, UnicodeDecodeError):
        return False


def read(path: Path) -> RawDataset:
    """Read the listed images, labelled by breed.

    Raises:
        DataError: a line of a list is of another form, or two breeds have one number.
    """
    names: dict[int, str] = {}
    rows: dict[SplitName, list[tuple[str, int]]] = {}
    for split, name in LISTS.items():
        listed = path / "annotations" / name
        rows[split] = []
        for number, line in enumerate(listed.read_text(encoding="utf-8").splitlines(), start=1):
            if not line.strip() or line.startswith("#"):
                continue
            entry = _parse(line)
            if (
                entry is None
                or names.setdefault(entry[1], entry[0].rpartition("_")[0]) != (entry[0].rpartition("_")[0])
            ):
                raise DataError(
                    f"line {number} of {listed} is {line.strip()!r}",
                    expected="an image's name and three numbers, of which the first is that of its breed",
                    remedy="Unpack annotations.tar.gz again",
                )
            rows[split].append(entry)
    numbers = sorted(names)
    place = {number: index for index, number in enumerate(numbers)}
    splits = {
        split: ImageSplit(
            [path / "images" / f"{image}.jpg" for image, _ in entries],
            np.array([place[number] for _, number in entries], dtype=np.int64),
            [f"images/{image}.jpg" for image, _ in entries],
        )
        for split, entries in rows.items()
    }
    return RawDataset(
        class_names=tuple(names[number].replace("_", " ") for number in numbers), splits=splits, upright=False
    )


def _parse(line: str) -> tuple[str, int] | None:
    """Return an image's name and breed number, or None for a malformed line."""
    cells = line.split()
    if len(cells) != 4 or not all(cell.isdigit() for cell in cells[1:]) or "_" not in cells[0]:
        return None
    return cells[0], int(cells[1])


FORMAT = Format(
    name="Oxford-IIIT Pet",
    layout="the Oxford-IIIT Pet data set as published: images/ beside annotations/trainval.txt and test.txt",
    recognises=recognises,
    read=read,
    rank=12,
)
