"""CIFAR-10 and CIFAR-100 as published: Python pickles or the binary version."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from vitrail.core.errors import DataError
from vitrail.data.dataset import ImageSplit
from vitrail.data.formats import Format, RawDataset
from vitrail.data.splits import SplitName
from vitrail.tasks.classification.formats.plain_pickle import read_plain_pickle

SIDE_PX = 32  # Krizhevsky 2009, section 3.1
PIXEL_BYTES = 3 * SIDE_PX * SIDE_PX
FOLDERS = ("cifar-10-batches-py", "cifar-100-python", "cifar-10-batches-bin", "cifar-100-binary")
TEN: dict[SplitName, tuple[str, ...]] = {
    "train": tuple(f"data_batch_{number}" for number in range(1, 6)),
    "test": ("test_batch",),
}
HUNDRED: dict[SplitName, tuple[str, ...]] = {"train": ("train",), "test": ("test",)}


def recognises(path: Path) -> bool:
    """Accept a folder that holds the batches, or the folder above it."""
    return _folder(path) is not None


def read(path: Path) -> RawDataset:
    """Read all batches; of CIFAR-100 the fine labels.

    Raises:
        DataError: a batch is missing or damaged.
    """
    folder = _folder(path)
    assert folder is not None, "recognised"
    has_ten = (folder / "data_batch_1").is_file() or (folder / "data_batch_1.bin").is_file()
    suffix = "" if (folder / "data_batch_1").is_file() or (folder / "meta").is_file() else ".bin"
    class_names = _class_names(folder, has_ten=has_ten, suffix=suffix)
    splits: dict[SplitName, ImageSplit] = {}
    for split, stems in (TEN if has_ten else HUNDRED).items():
        files = [folder / f"{stem}{suffix}" for stem in stems]
        missing = [file.name for file in files if not file.is_file()]
        if missing:
            raise DataError(
                f"{folder} lacks {', '.join(missing)}",
                expected=f"the files {', '.join(file.name for file in files)}",
                remedy="Unpack the archive of the data set again",
            )
        read_file = _read_pickle if not suffix else _read_binary
        parts = [read_file(file, has_ten=has_ten) for file in files]
        pixels = np.concatenate([part[0] for part in parts]).reshape(-1, 3, SIDE_PX, SIDE_PX)
        labels = np.concatenate([part[1] for part in parts])
        if labels.min(initial=0) < 0 or labels.max(initial=0) >= len(class_names):
            raise _damaged(files[0], f"it has labels up to {labels.max()} of {len(class_names)} classes")
        names = [f"{split}#{index}" for index in range(len(labels))]
        images = np.ascontiguousarray(pixels.transpose(0, 2, 3, 1))
        splits[split] = ImageSplit(images, labels, names)
    return RawDataset(class_names=class_names, splits=splits, upright=False)


def _folder(path: Path) -> Path | None:
    for folder in (path, *(path / name for name in FOLDERS)):
        marks = ("data_batch_1", "data_batch_1.bin", "fine_label_names.txt")
        is_hundred = (folder / "meta").is_file() and (folder / "train").is_file()
        if is_hundred or any((folder / mark).is_file() for mark in marks):
            return folder
    return None


def _class_names(folder: Path, *, has_ten: bool, suffix: str) -> tuple[str, ...]:
    if suffix:
        listed = folder / ("batches.meta.txt" if has_ten else "fine_label_names.txt")
        try:
            lines = listed.read_text(encoding="ascii").splitlines()
        except (OSError, ValueError) as error:
            raise _damaged(listed, str(error)) from None
        return tuple(line.strip() for line in lines if line.strip())
    meta = folder / ("batches.meta" if has_ten else "meta")
    names = _text_keys(read_plain_pickle(meta)).get("label_names" if has_ten else "fine_label_names")
    if not isinstance(names, list) or not names:
        raise _damaged(meta, "it holds no names of classes")
    return tuple(name.decode() if isinstance(name, bytes) else str(name) for name in names)


def _read_pickle(path: Path, *, has_ten: bool) -> tuple[np.ndarray, np.ndarray]:
    batch = _text_keys(read_plain_pickle(path))
    pixels, labels = batch.get("data"), batch.get("labels" if has_ten else "fine_labels")
    if (
        not isinstance(pixels, np.ndarray)
        or pixels.dtype != np.uint8
        or pixels.shape[1:] != (PIXEL_BYTES,)
        or labels is None
        or len(labels) != len(pixels)
    ):
        raise _damaged(path, "it holds no table of pixels with as many labels")
    return pixels, np.asarray(labels, dtype=np.int64)


def _read_binary(path: Path, *, has_ten: bool) -> tuple[np.ndarray, np.ndarray]:
    num_labels = 1 if has_ten else 2  # the coarse one stands before the fine one
    content = np.fromfile(path, dtype=np.uint8)
    if not len(content) or len(content) % (num_labels + PIXEL_BYTES):
        raise _damaged(path, f"it has {len(content):,} bytes")
    rows = content.reshape(-1, num_labels + PIXEL_BYTES)
    return rows[:, num_labels:], rows[:, num_labels - 1].astype(np.int64)


def _text_keys(batch: object) -> dict[str, Any]:
    """Decode bytes keys, which Python 3 makes of Python 2's text."""
    entries = batch.items() if isinstance(batch, dict) else ()
    return {key.decode() if isinstance(key, bytes) else str(key): value for key, value in entries}


def _damaged(path: Path, reason: str) -> DataError:
    return DataError(
        f"{path} cannot be read as a part of CIFAR: {reason}",
        expected="the file as it was published",
        remedy="Unpack the archive of the data set again",
    )


FORMAT = Format(
    name="CIFAR batches",
    layout="the files of CIFAR-10 or CIFAR-100 as published: data_batch_1 ..., test_batch and batches.meta; "
    "or train, test and meta; or the binary version's .bin files",
    recognises=recognises,
    read=read,
    rank=11,
)
