"""Published data sets whose files list images with their classes: Flowers-102, Oxford-IIIT Pet, VTAB-1k."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.core.errors import DataError
from vitrail.data.dataset import ImageSplit
from vitrail.data.formats import Format, RawDataset
from vitrail.data.splits import SplitName

FLOWER_SETS: dict[SplitName, str] = {"train": "trnid", "validation": "valid", "test": "tstid"}
NUM_FLOWERS = 102
PET_LISTS: dict[SplitName, str] = {"train": "trainval.txt", "test": "test.txt"}
VTAB_LISTS: dict[SplitName, str] = {"train": "train800.txt", "validation": "val200.txt", "test": "test.txt"}


def recognises_flowers(path: Path) -> bool:
    """Accept a folder with both MATLAB files and the images."""
    return (path / "imagelabels.mat").is_file() and (path / "setid.mat").is_file() and (path / "jpg").is_dir()


def read_flowers(path: Path) -> RawDataset:
    """Read the three splits; the classes are numbers, as the data set has no names.

    Raises:
        DataError: a file is damaged.
    """
    labels = _numbers(path / "imagelabels.mat", "labels")
    if not len(labels) or labels.min() < 1 or labels.max() > NUM_FLOWERS:
        raise _damaged(path / "imagelabels.mat", "its labels are not 1 to 102")
    splits: dict[SplitName, ImageSplit] = {}
    for split, field in FLOWER_SETS.items():
        numbers = _numbers(path / "setid.mat", field)
        if not len(numbers) or numbers.min() < 1 or numbers.max() > len(labels):
            raise _damaged(path / "setid.mat", f"{field} names images that have no label")
        names = [f"jpg/image_{number:05d}.jpg" for number in numbers]
        splits[split] = _to_split(path, names, labels[numbers - 1] - 1)
    class_names = tuple(str(number) for number in range(1, NUM_FLOWERS + 1))
    return RawDataset(class_names=class_names, splits=splits, upright=False)


def _numbers(path: Path, field: str) -> np.ndarray:
    content = read_matlab(path)
    if field not in content:
        raise _damaged(path, f"it has no field {field}")
    return np.asarray(content[field], dtype=np.int64).reshape(-1)


def read_matlab(path: Path) -> dict[str, Any]:
    """Return the fields of a MATLAB file.

    Raises:
        DataError: the file is damaged.
    """
    from scipy.io import loadmat  # a second to import

    try:
        return loadmat(path, squeeze_me=True)
    except Exception as error:  # whatever the reader meets in a damaged file
        raise _damaged(path, str(error)) from None


def _damaged(path: Path, reason: str) -> DataError:
    return DataError(
        f"{path} cannot be used: {' '.join(reason.split())[:200]}",
        expected="the file as it was published",
        remedy="Fetch it again",
    )


def recognises_pets(path: Path) -> bool:
    """Accept a folder with both lists in the published form."""
    lists = [path / "annotations" / name for name in PET_LISTS.values()]
    if not (path / "images").is_dir() or not all(listed.is_file() for listed in lists):
        return False
    try:
        with lists[0].open(encoding="utf-8", errors="strict") as file:
            return _parse_pet(file.readline()) is not None
    except (OSError, UnicodeDecodeError):
        return False


def read_pets(path: Path) -> RawDataset:
    """Read the listed images, labelled by breed.

    Raises:
        DataError: a line of a list is of another form, or two breeds have one number.
    """
    breeds: dict[int, str] = {}
    rows: dict[SplitName, list[tuple[str, int]]] = {split: [] for split in PET_LISTS}
    for split, name in PET_LISTS.items():
        listed = path / "annotations" / name
        for number, line in _lines_of(listed):
            if line.startswith("#"):
                continue
            entry = _parse_pet(line)
            breed = entry[0].rpartition("_")[0] if entry else ""
            if entry is None or breeds.setdefault(entry[1], breed) != breed:
                raise DataError(
                    f"line {number} of {listed} is {line!r}",
                    expected="an image's name and three numbers, of which the first is that of its breed",
                    remedy="Unpack annotations.tar.gz again",
                )
            rows[split].append(entry)
    numbers = sorted(breeds)
    splits = {
        split: _to_split(
            path,
            [f"images/{image}.jpg" for image, _ in entries],
            np.searchsorted(numbers, [number for _, number in entries]),
        )
        for split, entries in rows.items()
    }
    class_names = tuple(breeds[number].replace("_", " ") for number in numbers)
    return RawDataset(class_names=class_names, splits=splits, upright=False)


def _parse_pet(line: str) -> tuple[str, int] | None:
    """Return an image's name and breed number, or None for a malformed line."""
    parts = line.split()
    if len(parts) != 4 or not all(part.isdigit() for part in parts[1:]) or "_" not in parts[0]:
        return None
    return parts[0], int(parts[1])


def recognises_vtab(path: Path) -> bool:
    """Accept a folder with all three lists."""
    return path.is_dir() and all((path / name).is_file() for name in VTAB_LISTS.values())


def read_vtab(path: Path) -> RawDataset:
    """Read the listed images; the classes are numbers.

    Raises:
        DataError: a line is not a path and a number, or a list is empty.
    """
    splits: dict[SplitName, ImageSplit] = {}
    for split, listed in VTAB_LISTS.items():
        names, labels = [], []
        for number, line in _lines_of(path / listed):
            name, _, label = line.rpartition(" ")
            if not name or not label.isdigit():
                raise DataError(
                    f"line {number} of {path / listed} is {line!r}",
                    expected="the path of an image, a space, and the number of its class from 0",
                    remedy="Write the list again",
                )
            names.append(name)
            labels.append(int(label))
        if not names:
            raise DataError(
                f"{path / listed} names no image",
                expected="a line for each image",
                remedy="Write the list again",
            )
        splits[split] = _to_split(path, names, np.array(labels))
    num_classes = 1 + max(int(split.labels.max()) for split in splits.values())
    # No flipping: half of the tasks ask for a location, a count or an angle.
    return RawDataset(class_names=tuple(map(str, range(num_classes))), splits=splits, upright=True)


def _lines_of(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the number, from 1, and the text of each line that is not blank."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if line.strip():
            yield number, line.strip()


def _to_split(path: Path, names: Sequence[str], labels: np.ndarray) -> ImageSplit:
    return ImageSplit([path / name for name in names], labels, names)


FORMATS = (
    Format(
        name="Oxford-IIIT Pet",
        layout="the Oxford-IIIT Pet data set as published: images/ beside annotations/trainval.txt and "
        "test.txt",
        recognises=recognises_pets,
        read=read_pets,
        rank=12,
    ),
    Format(
        name="Oxford Flowers-102",
        layout="Oxford Flowers-102 as published: jpg/ beside imagelabels.mat and setid.mat",
        recognises=recognises_flowers,
        read=read_flowers,
        rank=13,
    ),
    Format(
        name="VTAB lists",
        layout="a task of VTAB-1k: train800.txt, val200.txt and test.txt with an image and a number in each "
        "line",
        recognises=recognises_vtab,
        read=read_vtab,
        rank=14,
    ),
)
