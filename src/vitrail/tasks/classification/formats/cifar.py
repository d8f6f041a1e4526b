"""CIFAR-10 and CIFAR-100 as published: Python pickles or the binary version."""

from __future__ import annotations

import io
import pickle
import pickletools
import re
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.core.errors import DataError
from vitrail.core.files import read_file
from vitrail.data.dataset import ImageSplit
from vitrail.data.formats import Format, RawDataset, reading_file
from vitrail.data.splits import SplitName

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
    read_batch = _read_binary if suffix else _read_pickle
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
        parts = []
        for file in files:
            with reading_file(file):
                pixels, labels = read_batch(file, has_ten=has_ten)
                if labels.min(initial=0) < 0 or labels.max(initial=0) >= len(class_names):
                    raise ValueError(f"it has labels up to {labels.max()} of {len(class_names)} classes")
                parts.append((pixels.reshape(-1, 3, SIDE_PX, SIDE_PX), labels))
        pixels, labels = map(np.concatenate, zip(*parts, strict=True))
        images = np.ascontiguousarray(pixels.transpose(0, 2, 3, 1))
        splits[split] = ImageSplit(images, labels, [f"{split}#{index}" for index in range(len(labels))])
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
        with reading_file(listed):
            lines = read_file(listed).decode("ascii").splitlines()
        return tuple(filter(None, map(str.strip, lines)))
    meta = folder / ("batches.meta" if has_ten else "meta")
    with reading_file(meta):
        names = _text_keys(read_plain_pickle(meta)).get("label_names" if has_ten else "fine_label_names")
        if not isinstance(names, list) or not names:
            raise ValueError("it holds no names of classes")
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
        raise ValueError("it holds no table of pixels with as many labels")
    return pixels, np.fromiter(labels, dtype=np.int64)


def _read_binary(path: Path, *, has_ten: bool) -> tuple[np.ndarray, np.ndarray]:
    num_labels = 1 if has_ten else 2  # the coarse one stands before the fine one
    content = np.frombuffer(read_file(path), dtype=np.uint8)
    if not len(content) or len(content) % (num_labels + PIXEL_BYTES):
        raise ValueError(f"it has {len(content):,} bytes")
    rows = content.reshape(-1, num_labels + PIXEL_BYTES)
    return rows[:, num_labels:], rows[:, num_labels - 1].astype(np.int64)


def _text_keys(batch: object) -> dict[str, Any]:
    """Decode bytes keys, which Python 3 makes of Python 2's text."""
    entries = batch.items() if isinstance(batch, dict) else ()
    return {key.decode() if isinstance(key, bytes) else str(key): value for key, value in entries}


FORMAT = Format(
    name="CIFAR batches",
    layout="the files of CIFAR-10 or CIFAR-100 as published: data_batch_1 ..., test_batch and batches.meta; "
    "or train, test and meta; or the binary version's .bin files",
    recognises=recognises,
    read=read,
    rank=11,
)


MAX_BYTES = 1 << 28  # the largest file of CIFAR has 155 MB
NUMBER_TYPE = re.compile(r"^[<>|=]?[biuf][1248]$")


def read_plain_pickle(path: Path) -> Any:
    """Return the plain values (Python 2 strings as text) and NumPy arrays of a pickle.

    Raises:
        DataError: the file cannot be read, is damaged, or holds anything else.
    """
    expected = "a complete pickle of numbers, texts and arrays alone, such as CIFAR's Python version"
    with reading_file(path, expected=expected):
        content = read_file(path, MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise ValueError(f"it has more than {MAX_BYTES:,} bytes")
        for operation, number, _ in pickletools.genops(content):
            # the unpickler allocates its memo up to the largest index
            if "PUT" in operation.name and isinstance(number, int) and number > len(content):
                raise ValueError(f"it numbers a value {number:,}")
        try:
            found = _PlainUnpickler(io.BytesIO(content), encoding="latin-1").load()
        except AttributeError as error:  # it treats a stand-in as a list or a set
            raise ValueError(str(error)) from None
        return _Plain().of(found)


# Classes, not functions, and each with its own __setstate__: a pickle cannot set attributes on any of them.
class _Dtype:
    """Stands for ``numpy.dtype``: numeric types only."""

    def __init__(self, text: str, *_: Any) -> None:
        if not NUMBER_TYPE.match(text):
            raise ValueError(f"it holds values of the type {text!r}")
        self.type = np.dtype(text)

    def __setstate__(self, state: Any) -> None:
        if state[1] in ("<", ">"):
            self.type = self.type.newbyteorder(state[1])


class _Array:
    """Stands for an array built by ``_reconstruct`` and its state."""

    def __init__(self, *_: Any) -> None:
        self.parts: tuple[Any, ...] = ()

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, is_fortran, raw = state
        self.parts = (raw, dtype, shape, "F" if is_fortran else "C")


class _BufferArray(_Array):
    """Stands for an array built by ``_frombuffer``, from protocol 5 on."""

    def __init__(self, raw: Any, dtype: Any, shape: Any, order: Any) -> None:
        self.parts = (raw, dtype, shape, order)


class _Bytes:
    """Stands for ``_codecs.encode``, which protocols 0 to 2 use for bytes; copies nothing."""

    def __init__(self, text: str, *_: Any) -> None:
        self.text = text

    def __setstate__(self, state: Any) -> None:
        raise ValueError("it sets up bytes")


ALLOWED: dict[tuple[str, str], type] = {
    ("numpy", "dtype"): _Dtype,
    ("numpy", "ndarray"): _Array,
    ("_codecs", "encode"): _Bytes,
} | {
    (f"numpy.{core}.{module}", name): stand_in
    for core in ("core", "_core")
    for module in ("multiarray", "numeric")
    for name, stand_in in (("_reconstruct", _Array), ("_frombuffer", _BufferArray))
}
"""The names that a pickle may import, and their stand-ins."""


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> type:
        if (module, name) not in ALLOWED:
            raise ValueError(f"it uses {module}.{name}, which no array needs")
        return ALLOWED[module, name]


class _Plain:
    """Turns stand-ins into plain values, each once, however often a pickle refers to it."""

    def __init__(self) -> None:
        self._done: dict[int, Any] = {}
        self._encode = cache(partial(str.encode, encoding="latin-1"))  # one text may be of many arrays

    def of(self, value: Any) -> Any:
        if id(value) not in self._done:
            self._done[id(value)] = self._convert(value)
        return self._done[id(value)]

    def _convert(self, value: Any) -> Any:
        if isinstance(value, _Array):
            raw, dtype, shape, order = value.parts
            raw = self._encode(raw) if isinstance(raw, str) else self.of(raw)
            if not isinstance(dtype, _Dtype):
                raise ValueError("it holds an array of no type of numbers")
            return np.frombuffer(raw, dtype=dtype.type).reshape(shape, order=order)
        if isinstance(value, _Bytes):
            return self._encode(value.text)
        if isinstance(value, dict):
            return {self.of(key): self.of(entry) for key, entry in value.items()}
        if type(value) in (list, tuple):
            return type(value)(self.of(entry) for entry in value)
        if value is not None and not isinstance(value, bool | int | float | str | bytes | bytearray):
            raise ValueError("it holds more than plain values and arrays")
        return value
