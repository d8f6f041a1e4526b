"""Data set types: three splits of samples, and the labelled images of classification."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, Protocol, Self, TypeVar, runtime_checkable

import numpy as np

from vitrail.core.files import read_file
from vitrail.data.findings import Finding

Progress = Callable[[int, int], None]
"""Called with how many of how many images are done."""


@runtime_checkable
class Split(Protocol):
    """Samples of any kind, with names."""

    def __len__(self) -> int: ...

    def take(self, indices: Any, /) -> Self: ...

    @property
    def names(self) -> Sequence[str]: ...

    @property
    def contents(self) -> Sequence[Any] | np.ndarray:
        """Each sample without its annotation, as for ``contents_of``."""

    @property
    def fingerprint(self) -> str:
        """Sixteen hexadecimal digits that change with the content."""


S = TypeVar("S", bound=Split)


@dataclass(frozen=True, kw_only=True)
class DividedDataset(Generic[S]):
    """A data set divided into train, validation and test."""

    source: str
    format: str
    train: S
    """Empty if the source holds test samples alone."""
    validation: S
    """May be empty."""
    test: S
    validation_origin: str = "from the source"
    """Where the validation split comes from, for the signature of a score."""
    test_origin: str = "from the source"
    """Likewise of the test split."""
    undivided: S | None = None
    """All samples of a source whose test split was drawn; the others are parts of them."""
    is_published: bool = False
    """Whether it is a benchmark, which is scored as published, with nothing left out."""
    findings: tuple[Finding, ...] = ()
    """What the reader noticed, such as ignored files and rows; the doctor passes it on."""

    @property
    def splits(self) -> dict[str, S]:
        return {"train": self.train, "validation": self.validation, "test": self.test}

    @property
    def fingerprint(self) -> str:
        """Sixteen hexadecimal digits that change with any split, or the names of classes or languages."""
        digest = hashlib.blake2b(self._named(), digest_size=8)
        for split in self.splits.values():
            digest.update(split.fingerprint.encode())
        return digest.hexdigest()

    def sign(self, split: str) -> dict[str, str]:
        origin = {"validation": self.validation_origin, "test": self.test_origin}.get(split, "")
        return {
            "data": f"{Path(self.source).name}@{self.splits[split].fingerprint}",
            "split": f"{split} ({origin})" if origin else split,
        }

    def without(self, names: Collection[str]) -> Self:
        """Drop samples by name, such as a verdict's ``exclude``."""
        if not names:
            return self
        every = self.splits if self.undivided is None else {**self.splits, "undivided": self.undivided}
        kept: dict[str, Any] = {
            part: split.take([index for index, name in enumerate(split.names) if name not in names])
            for part, split in every.items()
        }
        return replace(self, **kept)

    def as_test(self) -> Self:
        """Return the data set with all samples for its test, if none are named for it."""
        if self.undivided is None:
            return self
        return replace(self, test=self.undivided, test_origin="all of the source", undivided=None)

    def _named(self) -> bytes:
        return "\n".join(getattr(self, "class_names", ())).encode(errors="surrogateescape")


EncodedImage = Path | bytes | np.ndarray
"""A file, the bytes of one, or decoded pixels: uint8 ``height width`` or ``height width 3``."""

HASHED_BYTES = 65536  # of each file, for the fingerprint


class ImageSplit:
    """Labelled images; each is a file, encoded bytes or decoded pixels.

    Args:
        images: a sequence of ``Path``, ``bytes`` or uint8 arrays ``height width [3]``; one uint8 array
            ``n height width [3]`` is such a sequence.
        labels: class index of each image, int64.
        names: of each image in messages and reports, unique within its data set.
    """

    def __init__(self, images: Sequence[Any] | np.ndarray, labels: np.ndarray, names: Sequence[str]) -> None:
        assert len(images) == len(labels) == len(names), "images, labels and names differ in length"
        self.images, self.names = images, tuple(names)
        self.labels = np.asarray(labels, dtype=np.int64)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def contents(self) -> Sequence[Any] | np.ndarray:
        return self.images

    def take(self, indices: Iterable[int] | np.ndarray) -> ImageSplit:
        chosen = np.asarray(indices if isinstance(indices, np.ndarray) else list(indices), dtype=np.int64)
        names = [self.names[index] for index in chosen]
        return ImageSplit(_select(self.images, chosen), self.labels[chosen], names)

    def count_per_class(self, num_classes: int) -> np.ndarray:
        return np.bincount(self.labels, minlength=num_classes)

    @cached_property
    def fingerprint(self) -> str:
        """Sixteen hexadecimal digits that change with any label, name or pixel in memory.

        Of files, the size and the first 64 KiB are hashed.
        """
        digest = hashlib.blake2b(digest_size=8)
        digest.update("\n".join(self.names).encode(errors="surrogateescape"))
        digest.update(self.labels.tobytes())
        if isinstance(self.images, np.ndarray):
            digest.update(np.ascontiguousarray(self.images).data)
        else:
            for image in self.images:
                _update(digest, image)
        return digest.hexdigest()


@dataclass(frozen=True, kw_only=True)
class ImageDataset(DividedDataset[ImageSplit]):
    """A data set for image classification."""

    class_names: tuple[str, ...]
    """In the order of the labels."""
    upright: bool = False
    """True if a flipped image may belong to another class or to none (digits, letters)."""


class _Selected(Sequence[Any]):
    """A lazy selection from a sequence that is too costly to copy, such as a column on disk."""

    def __init__(self, images: Sequence[Any], indices: np.ndarray) -> None:
        self._images, self._indices = images, indices

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, index: Any) -> Any:
        return self._images[int(self._indices[index])]


def _select(images: Sequence[Any] | np.ndarray, indices: np.ndarray) -> Sequence[Any] | np.ndarray:
    if isinstance(images, np.ndarray):
        return images[indices]
    if isinstance(images, list | tuple):
        return [images[index] for index in indices]
    return _Selected(images, indices)


def _update(digest: Any, image: EncodedImage) -> None:
    if isinstance(image, Path):
        try:
            digest.update(str(os.path.getsize(image)).encode())
            digest.update(read_file(image, HASHED_BYTES))
        except (OSError, ValueError):  # missing, or of an impossible name
            digest.update(b"unreadable")
    elif isinstance(image, bytes):
        digest.update(image)
    else:
        digest.update(repr(image.shape).encode())
        digest.update(np.ascontiguousarray(image).data)


def contents_of(samples: Sequence[EncodedImage | str | tuple[str, ...]] | np.ndarray) -> list[Hashable]:
    """Return what copies of a sample have in common; a file of a size of its own is not read."""
    sizes = [_size_of(sample) if isinstance(sample, Path) else -1 for sample in samples]
    counts = Counter(sizes)
    return [
        size if size >= 0 and counts[size] == 1 else _hash_whole(sample)
        for size, sample in zip(sizes, samples, strict=True)
    ]


def _size_of(image: Path) -> int:
    try:
        return os.path.getsize(image)
    except (OSError, ValueError):
        return -1


def _hash_whole(image: EncodedImage | str | tuple[str, ...]) -> Hashable:
    if isinstance(image, str | tuple):
        return image
    if isinstance(image, np.ndarray):
        return image.shape, hashlib.sha256(np.ascontiguousarray(image).data).digest()
    try:
        return hashlib.sha256(read_file(image) if isinstance(image, Path) else image).digest()
    except (OSError, ValueError):
        return image  # a missing file is no copy of another


def order_class_names(names: Iterable[str]) -> tuple[str, ...]:
    """Sort names, as whole numbers if all of them are, else as text."""
    distinct = set(names)
    if all(name.isascii() and name.removeprefix("-").isdigit() for name in distinct):
        return tuple(sorted(distinct, key=lambda name: (int(name), name)))
    return tuple(sorted(distinct))


def encode_labels(texts: Sequence[str], class_names: Sequence[str]) -> np.ndarray:
    """Return the class index of each label, int64; every label must be among the names."""
    index_of = {name: index for index, name in enumerate(class_names)}
    return np.array([index_of[text] for text in texts], dtype=np.int64)


def are_characters(class_names: Sequence[str]) -> bool:
    """Tell whether the classes are single digits or letters, which must not be flipped."""
    return bool(class_names) and all(
        len(name) == 1 and name.isascii() and name.isalnum() for name in class_names
    )
