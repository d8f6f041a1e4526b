"""The typed form in which every data set of images with captions arrives, whatever its files looked like."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from vitrail.data.dataset import DividedDataset, ImageSplit


class CaptionSplit:
    """Images with captions; each image is a file, encoded bytes or decoded pixels.

    Args:
        images: a sequence of ``Path``, ``bytes`` or uint8 arrays ``height width [3]``; one uint8 array
            ``n height width [3]`` is such a sequence.
        captions: of each image, at least one; none of them is empty.
        names: what to call each image in messages and reports, unique within its data set.
    """

    def __init__(
        self, images: Sequence[Any] | np.ndarray, captions: Sequence[Sequence[str]], names: Sequence[str]
    ) -> None:
        assert len(images) == len(captions) == len(names), "images, captions and names differ in length"
        self._content = ImageSplit(images, np.zeros(len(names), dtype=np.int64), names)
        self.captions = tuple(tuple(texts) for texts in captions)
        assert all(self.captions), "an image without captions is no sample"

    @property
    def images(self) -> Sequence[Any] | np.ndarray:
        """The images."""
        return self._content.images

    @property
    def names(self) -> tuple[str, ...]:
        """The name of each image."""
        return self._content.names

    def __len__(self) -> int:
        return len(self.captions)

    @property
    def num_captions(self) -> int:
        """Number of captions of all images."""
        return sum(map(len, self.captions))

    def take(self, indices: Iterable[int] | np.ndarray) -> CaptionSplit:
        """Return the images at some indices, in that order."""
        chosen = np.asarray(indices if isinstance(indices, np.ndarray) else list(indices), dtype=np.int64)
        content = self._content.take(chosen)
        return CaptionSplit(content.images, [self.captions[index] for index in chosen], content.names)

    @cached_property
    def fingerprint(self) -> str:
        """Sixteen hexadecimal digits that change with any caption, name or pixel in memory.

        Of files, the size and the first 64 KiB are hashed.
        """
        digest = hashlib.blake2b(self.image_fingerprint.encode(), digest_size=8)
        for texts in self.captions:
            # a caption may hold what is no text, as names of files may
            digest.update(f"{len(texts)}\n".encode() + "\n".join(texts).encode(errors="surrogatepass"))
        return digest.hexdigest()

    @property
    def image_fingerprint(self) -> str:
        """Sixteen hexadecimal digits that change with any image or name, whatever the captions are."""
        return self._content.fingerprint


@dataclass(frozen=True)
class CaptionFacts:
    """What a source holds beside the samples, for the doctor to judge; readers make no findings of it."""

    captions_without_image: tuple[str, ...] = ()
    """Images that captions refer to and that are not there; their captions are left out."""
    images_without_captions: tuple[str, ...] = ()
    """Images that lie there and that no caption, or none but empty ones, belongs to; they are left out."""
    empty_captions: tuple[str, ...] = ()
    """Captions without a letter, named by their image and place; they are left out."""


@dataclass(frozen=True, kw_only=True)
class CaptionDataset(DividedDataset[CaptionSplit]):
    """A data set of images with captions, divided into train, validation and test."""

    facts: CaptionFacts = field(default_factory=CaptionFacts)
    """What the source holds beside the samples."""
