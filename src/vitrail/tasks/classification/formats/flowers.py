"""Oxford Flowers-102 as published: jpg/, imagelabels.mat and setid.mat."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from vitrail.core.errors import DataError
from vitrail.data.dataset import ImageSplit
from vitrail.data.formats import Format, RawDataset
from vitrail.data.splits import SplitName

SETS: dict[SplitName, str] = {"train": "trnid", "validation": "valid", "test": "tstid"}
NUM_CLASSES = 102


def recognises(path: Path) -> bool:
    """Accept a folder with both MATLAB files and the images."""
    return (path / "imagelabels.mat").is_file() and (path / "setid.mat").is_file() and (path / "jpg").is_dir()


def read(path: Path) -> RawDataset:
    """Read the three splits; the classes are numbers, as the data set has no names.

    Raises:
        DataError: scipy is not installed, or a file is damaged.
    """
    labels = _numbers(path / "imagelabels.mat", "labels")
    if not len(labels) or labels.min() < 1 or labels.max() > NUM_CLASSES:
        raise _damaged(path / "imagelabels.mat", "its labels are not 1 to 102")
    splits: dict[SplitName, ImageSplit] = {}
    for split, field in SETS.items():
        numbers = _numbers(path / "setid.mat", field)
        if not len(numbers) or numbers.min() < 1 or numbers.max() > len(labels):
            raise _damaged(path / "setid.mat", f"{field} names images that have no label")
        names = [f"jpg/image_{number:05d}.jpg" for number in numbers]
        splits[split] = ImageSplit([path / name for name in names], labels[numbers - 1] - 1, names)
    class_names = tuple(str(number) for number in range(1, NUM_CLASSES + 1))
    return RawDataset(class_names=class_names, splits=splits, upright=False)


def _numbers(path: Path, field: str) -> np.ndarray:
    content = read_matlab(path)
    if field not in content:
        raise _damaged(path, f"it has no field {field}")
    return np.asarray(content[field], dtype=np.int64).reshape(-1)


def read_matlab(path: Path) -> dict[str, Any]:
    """Return the fields of a MATLAB file.

    Raises:
        DataError: scipy is not installed, or the file is damaged.
    """
    try:
        from scipy.io import loadmat
    except ImportError:
        raise DataError(
            f"reading {path} needs the package scipy, which is not installed",
            expected="scipy beside vitrail",
            remedy="Install it with: pip install 'vitrail[protocols]'",
        ) from None
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


FORMAT = Format(
    name="Oxford Flowers-102",
    layout="Oxford Flowers-102 as published: jpg/ beside imagelabels.mat and setid.mat",
    recognises=recognises,
    read=read,
    rank=13,
)
