"""IDX files, the format of MNIST: four files, usually gzipped.

The format: two zero bytes, a type code, the number of dimensions, each dimension as a big-endian 32-bit
number, then the values (Y. LeCun, C. Cortes, C. Burges, "The MNIST database", section "File formats").
"""

from __future__ import annotations

import re
import struct
from pathlib import Path

import numpy as np

from vitrail.core.errors import DataError
from vitrail.core.files import open_packed, unpacked_limit
from vitrail.data.dataset import ImageSplit
from vitrail.data.formats import Format, RawDataset, reading_file
from vitrail.data.splits import SplitName
from vitrail.data.text.lines import read_list

UNSIGNED_BYTE = 8  # the format's type code; the only one that images and labels use
STEMS: dict[str, SplitName] = {"train": "train", "t10k": "test", "test": "test"}
FASHION_NAMES = (  # Xiao et al. 2017, table 2
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip


def recognises(path: Path) -> bool:
    """Accept a folder that holds the images of a training split."""
    return path.is_dir() and _find(path, "train", "images", 3) is not None


def read(path: Path) -> RawDataset:
    """Read the splits in a folder; ``classes.txt``, one name per line, names the classes.

    Raises:
        DataError: a file is missing, damaged or of another size than its header says.
    """
    splits: dict[SplitName, ImageSplit] = {}
    for stem, split in STEMS.items():
        images_path = _find(path, stem, "images", 3)
        if images_path is None or split in splits:
            continue
        labels_path = _find(path, stem, "labels", 1)
        if labels_path is None:
            raise DataError(
                f"{images_path} has no file of labels beside it",
                expected=f"{stem}-labels-idx1-ubyte or the same with .gz",
                remedy="Put the file of labels into the same folder",
            )
        images, labels = read_idx(images_path), read_idx(labels_path)
        if images.ndim != 3 or labels.ndim != 1 or len(images) != len(labels):
            raise DataError(
                f"{images_path} has the shape {images.shape} and {labels_path.name} {labels.shape}",
                expected="images of three dimensions and as many labels",
                remedy="Download both files again from the same source",
            )
        names = [f"{images_path.name}#{index}" for index in range(len(labels))]
        splits[split] = ImageSplit(images, labels.astype(np.int64), names)
    num_classes = 1 + max(int(split.labels.max(initial=0)) for split in splits.values())
    return RawDataset(class_names=_class_names(path, num_classes), splits=splits)


def read_idx(path: Path) -> np.ndarray:
    """Read one IDX file of bytes, compressed if its name ends in ``.gz``.

    Raises:
        DataError: the file is damaged, or not IDX.
    """
    expected = "a complete IDX file of bytes, such as the MNIST family's"
    with reading_file(path, expected=expected), open_packed(path) as file:
        start = file.read(4)
        if len(start) < 4 or start[:2] != b"\0\0" or start[2] != UNSIGNED_BYTE or not 1 <= start[3] <= 4:
            raise ValueError(f"it starts with the bytes {start.hex(' ')}")
        shape = struct.unpack(f">{start[3]}I", file.read(4 * start[3]))
        size = int(np.prod(shape, dtype=object))
        if size > unpacked_limit(path):
            raise ValueError(f"its header announces {size:,} bytes")
        content = file.read(size + 1)
        if len(content) != size:
            raise ValueError(f"its header announces {size:,} bytes and it holds {len(content):,}")
    return np.frombuffer(content, dtype=np.uint8).reshape(shape)


def _find(folder: Path, stem: str, what: str, dimensions: int) -> Path | None:
    endings = (f"{dot}idx{dimensions}-ubyte{suffix}" for dot in "-." for suffix in (".gz", ""))
    paths = (folder / f"{stem}-{what}{ending}" for ending in endings)
    return next((path for path in paths if path.is_file()), None)


def _class_names(path: Path, num_classes: int) -> tuple[str, ...]:
    listed = path / "classes.txt"
    if listed.is_file():
        names = tuple(filter(None, map(str.strip, read_list(listed, entry="the name of a class"))))
        if len(names) >= num_classes and len(set(names)) == len(names):
            return names
        raise DataError(
            f"{listed} names {len(set(names))} classes and the labels have {num_classes}",
            expected="one distinct name in each line, in the order of the labels",
            remedy="Correct the file or remove it",
        )
    if re.search(r"fashion[-_ ]?mnist", path.resolve().name.lower()) and num_classes == len(FASHION_NAMES):
        return FASHION_NAMES
    return tuple(str(label) for label in range(num_classes))


FORMAT = Format(
    name="IDX files",
    layout="a folder with train-images-idx3-ubyte.gz, train-labels-idx1-ubyte.gz and t10k-... for the test",
    recognises=recognises,
    read=read,
    rank=10,
)
