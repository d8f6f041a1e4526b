"""Published data sets whose files list images with their classes: Flowers-102, Oxford-IIIT Pet, VTAB-1k."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.core.files import parse_json, read_file
from vitrail.data.dataset import ImageSplit
from vitrail.data.file_places import start_of
from vitrail.data.formats import Format, RawDataset, reading_file
from vitrail.data.splits import SplitName
from vitrail.data.text.lines import read_list

FLOWER_SETS: dict[SplitName, str] = {"train": "trnid", "validation": "valid", "test": "tstid"}
NUM_FLOWERS = 102
PET_LISTS: dict[SplitName, str] = {"train": "annotations/trainval.txt", "test": "annotations/test.txt"}
PET_LINE = re.compile(r"(?P<image>(?P<class>\S*)_\S*)\s+(?P<label>\d{1,6})\s+\d+\s+\d+")
VTAB_LISTS: dict[SplitName, str] = {"train": "train800.txt", "validation": "val200.txt", "test": "test.txt"}
VTAB_LINE = re.compile(r"(?P<image>.+) (?P<label>\d{1,6})")

MATLAB_READER = """
import io, json, sys
import numpy as np
from scipy.io import loadmat

def plain(value):
    if getattr(getattr(value, "dtype", None), "names", None):
        return [dict(zip(entry.dtype.names, entry)) for entry in np.atleast_1d(value)]
    return value.tolist() if hasattr(value, "tolist") else str(value)

found = loadmat(io.BytesIO(sys.stdin.buffer.read()), squeeze_me=True)
json.dump({name: value for name, value in found.items() if name[:2] != "__"}, sys.stdout, default=plain)
"""


def read_flowers(path: Path) -> RawDataset:
    """Read the three splits; the classes are numbers, as the data set has no names.

    Raises:
        DataError: a file is damaged.
    """
    labels = _numbers(path / "imagelabels.mat", "labels", NUM_FLOWERS)
    splits: dict[SplitName, ImageSplit] = {}
    for split, field in FLOWER_SETS.items():
        numbers = _numbers(path / "setid.mat", field, len(labels))
        names = [f"jpg/image_{number:05d}.jpg" for number in numbers]
        splits[split] = _to_split(path, names, labels[numbers - 1] - 1)
    class_names = tuple(str(number) for number in range(1, NUM_FLOWERS + 1))
    return RawDataset(class_names=class_names, splits=splits, upright=False)


def _numbers(path: Path, field: str, most: int) -> np.ndarray:
    with reading_file(path):
        numbers = np.asarray(read_matlab(path)[field], dtype=np.int64).reshape(-1)
        if not len(numbers) or numbers.min() < 1 or numbers.max() > most:
            raise ValueError(f"its {field} are not numbers from 1 to {most:,}")
        return numbers


def read_matlab(path: Path) -> dict[str, Any]:
    """Return the fields of a MATLAB file, structures as dictionaries; ``DataError`` if the file is damaged.

    SciPy reads it in a process of its own: damaged files end that (SciPy 1.17, a segmentation fault).
    """
    command = [sys.executable, "-c", MATLAB_READER]
    with reading_file(path):
        done = subprocess.run(command, input=read_file(path), capture_output=True, timeout=60, check=False)
        if done.returncode:
            said = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
            raise ValueError(said or f"its reader ended with code {done.returncode}")
        return dict(parse_json(done.stdout))


def recognises_pets(path: Path) -> bool:
    """Accept a folder with both lists in the published form."""
    lists = [path / listed for listed in PET_LISTS.values()]
    if not (path / "images").is_dir() or not all(listed.is_file() for listed in lists):
        return False
    first = start_of(lists[0]).decode(errors="replace").partition("\n")[0]
    return PET_LINE.fullmatch(first.strip()) is not None


def read_pets(path: Path) -> RawDataset:
    """Read the listed images, labelled by breed.

    Raises:
        DataError: a line of a list is of another form, two breeds have one number, or a list is empty.
    """
    expected = "an image's name and three numbers, of which the first is that of its breed"
    listed, breeds = _read_lists(path, PET_LISTS, PET_LINE, image="images/{}.jpg", expected=expected)
    numbers = sorted(breeds)
    splits = {
        split: ImageSplit(part.images, np.searchsorted(numbers, part.labels), part.names)
        for split, part in listed.items()
    }
    class_names = tuple(breeds[number].replace("_", " ") for number in numbers)
    return RawDataset(class_names=class_names, splits=splits, upright=False)


def read_vtab(path: Path) -> RawDataset:
    """Read the listed images; the classes are numbers.

    Raises:
        DataError: a line is not a path and a number, or a list is empty.
    """
    expected = "the path of an image, a space, and the number of its class from 0"
    splits, numbers = _read_lists(path, VTAB_LISTS, VTAB_LINE, image="{}", expected=expected)
    class_names = tuple(map(str, range(1 + max(numbers))))
    # No flipping: half of the tasks ask for a location, a count or an angle.
    return RawDataset(class_names=class_names, splits=splits, upright=True)


def _read_lists(
    path: Path, lists: Mapping[SplitName, str], form: re.Pattern[str], *, image: str, expected: str
) -> tuple[dict[SplitName, ImageSplit], dict[int, str]]:
    """Return the listed images of each split, and the class names by number.

    Args:
        form: of a line, with groups for the image, its label and, where it has a name, its class.
        image: path of an image by its name in the list.
        expected: what a line holds, for the error.
    """
    splits: dict[SplitName, ImageSplit] = {}
    class_names: dict[int, str] = {}
    for split, name in lists.items():
        names, labels = [], []
        with reading_file(path / name, expected=f"a line for each image: {expected}"):
            for number, line in enumerate(map(str.strip, read_list(path / name, entry=expected)), start=1):
                if not line or line.startswith("#"):
                    continue
                found = form.fullmatch(line)
                named = found.groupdict().get("class", "") if found else ""
                if found is None or class_names.setdefault(int(found["label"]), named) != named:
                    raise ValueError(f"line {number} is {line!r}")
                names.append(image.format(found["image"]))
                labels.append(int(found["label"]))
            if not names:
                raise ValueError("it names no image")
        splits[split] = _to_split(path, names, np.array(labels))
    return splits, class_names


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
        recognises=lambda path: all(
            (path / name).exists() for name in ("imagelabels.mat", "setid.mat", "jpg")
        ),
        read=read_flowers,
        rank=13,
    ),
    Format(
        name="VTAB lists",
        layout="a task of VTAB-1k: train800.txt, val200.txt and test.txt with an image and a number in each "
        "line",
        recognises=lambda path: all((path / name).is_file() for name in VTAB_LISTS.values()),
        read=read_vtab,
        rank=14,
    ),
)
