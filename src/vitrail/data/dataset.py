"""The typed form in which every image classification data set arrives, whatever its files looked like."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.data.divided import DividedDataset

EncodedImage = Path | bytes | np.ndarray
"""A file, the bytes of one, or decoded pixels: uint8 ``height width`` or ``height width 3``."""

HASHED_BYTES = 65536  # of each file, for the fingerprint


class ImageSplit:
    """Labelled images; each is a file, encoded bytes or decoded pixels.

    Args:
        images: a sequence of ``Path``, ``bytes`` or uint8 arrays ``height width [3]``; one uint8 array
            ``n height width [3]`` is such a sequence.
        labels: class index of each image, int64.
        names: what to call each image in messages and reports, unique within its data set.
    """

    def __init__(self, images: Sequence[Any] | np.ndarray, labels: np.ndarray, names: Sequence[str]) -> None:
        assert len(images) == len(labels) == len(names), "images, labels and names differ in length"
        self.images, self.names = images, tuple(names)
        self.labels = np.asarray(labels, dtype=np.int64)

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, indices: Iterable[int] | np.ndarray) -> ImageSplit:
        """Return the images at some indices, in that order."""
        chosen = np.asarray(indices if isinstance(indices, np.ndarray) else list(indices), dtype=np.int64)
        names = [self.names[index] for index in chosen]
        return ImageSplit(_select(self.images, chosen), self.labels[chosen], names)

    def count_per_class(self, num_classes: int) -> np.ndarray:
        """Return how many images each class has."""
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
    """A data set for image classification, divided into train, validation and test."""

    class_names: tuple[str, ...]
    """Names of the classes, in the order of the labels."""
    upright: bool = False
    """True where a mirrored image may belong to another class or to none (digits, letters)."""

    def _named(self) -> bytes:
        return "\n".join(self.class_names).encode(errors="surrogateescape")


class _Selected(Sequence[Any]):
    """Some elements of a sequence that is too costly to copy, such as a column on disk."""

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
            with image.open("rb") as file:
                digest.update(file.read(HASHED_BYTES))
        except OSError:
            digest.update(b"unreadable")
    elif isinstance(image, bytes):
        digest.update(image)
    else:
        digest.update(repr(image.shape).encode())
        digest.update(np.ascontiguousarray(image).data)
