"""Inspect every image of a split once: can it be decoded, what is it, and which others equal it?"""

from __future__ import annotations

import hashlib
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int64
from PIL import Image

from vitrail.core.errors import DataError
from vitrail.data.dataset import DividedDataset, EncodedImage, ImageSplit, Progress
from vitrail.data.images import (
    SIXTEEN_BIT_MODES,
    NoReaderError,
    decode,
    exif_orientation,
    is_transparent,
    open_image,
    strips,
    upright_size,
)

CHUNK = 64  # images that one thread takes at a time
SAME_FORMAT = {"MPO": "JPEG"}  # a JPEG file of several views, as cameras write it


class Inspection(NamedTuple):
    """What one image turned out to be."""

    pixel_hash: bytes = b""
    """Hash of shape and upright RGB pixels; of the stored values for pixels in memory."""
    height: int = 0
    """Of the upright image."""
    width: int = 0
    traits: tuple[str, ...] = ()
    """What was converted: grey, alpha, sixteen-bit, cmyk, rotated, palette, animated."""
    other_format: str = ""
    """The true format, if the file's suffix names another."""
    error: str = ""
    """Why it cannot be used; empty if it can."""
    orientation: int = 1
    """Exif tag, 1..8: how the stored pixels were turned to be upright; 1 if they are."""
    remedy: str = ""
    """How to install what reads it, if that is all it lacks."""

    @property
    def stored_size(self) -> tuple[int, int]:
        """Height and width of the pixels as stored, before they are turned upright."""
        return (self.width, self.height) if self.orientation >= 5 else (self.height, self.width)


@dataclass(frozen=True)
class Examined:
    """A data set with what the checks need to know of its samples."""

    dataset: DividedDataset[Any]

    @property
    def things(self) -> str:
        """What has a class."""
        return "images"

    @property
    def class_names(self) -> tuple[str, ...]:
        return getattr(self.dataset, "class_names", ())

    @cached_property
    def per_class(self) -> dict[str, np.ndarray]:
        """For each split, the number of usable examples of each class; empty if there are no classes."""
        return {}

    @property
    def counts(self) -> dict[str, Any]:
        per_class = {name: numbers.tolist() for name, numbers in self.per_class.items()}
        return {
            "classes": len(self.class_names),
            "format": self.dataset.format,
            "per_class": {
                name: {split: numbers[label] for split, numbers in per_class.items()}
                for label, name in enumerate(self.class_names)
            },
        }

    def class_list(self, chosen: np.ndarray) -> tuple[str, ...]:
        return tuple(self.class_names[index] for index in np.flatnonzero(chosen))


@dataclass(frozen=True)
class SeenImages(Examined):
    """A data set of images with any kind of labels, and the inspection of each image."""

    inspections: dict[str, list[Inspection]]
    """Of the images of each split."""

    def rows(self) -> Iterator[tuple[str, int, str, Inspection]]:
        """Yield split, index in the split, name and inspection of each image."""
        for split_name, split in self.dataset.splits.items():
            for index, (name, seen) in enumerate(zip(split.names, self.inspections[split_name], strict=True)):
                yield split_name, index, name, seen

    @cached_property
    def unreadable(self) -> dict[str, str]:
        """By name of each unusable image, the reason."""
        return {name: seen.error for _, _, name, seen in self.rows() if seen.error}

    @cached_property
    def seen(self) -> list[tuple[str, Inspection]]:
        """Name and inspection of each usable image."""
        return [(name, seen) for _, _, name, seen in self.rows() if not seen.error]

    @cached_property
    def equal_images(self) -> list[list[tuple[str, int, str]]]:
        """Split, index in the split and name of the usable images, those of the same pixels together."""
        groups: dict[bytes, list[tuple[str, int, str]]] = defaultdict(list)
        for split, index, name, seen in self.rows():
            if not seen.error:
                groups[seen.pixel_hash].append((split, index, name))
        return [*groups.values()]

    @property
    def counts(self) -> dict[str, Any]:
        images = {name: len(split) for name, split in self.dataset.splits.items()}
        return {"images": images, **super().counts, "sizes": count_sizes(self)}


def count_sizes(examined: SeenImages) -> dict[str, Any]:
    """Return the number of image sizes, the most common ones and the extremes, for a verdict."""
    sizes = Counter((seen.height, seen.width) for _, seen in examined.seen)
    sides = sorted(sizes)
    return {
        "distinct": len(sizes),
        "most_common": [list(size) for size, _ in sizes.most_common(3)],
        "height": [min(side[0] for side in sides), max(side[0] for side in sides)] if sides else [],
        "width": [min(side[1] for side in sides), max(side[1] for side in sides)] if sides else [],
    }


def inspect_splits(
    splits: Mapping[str, ImageSplit], progress: Progress | None = None
) -> dict[str, list[Inspection]]:
    """Inspect the images of all splits, with threads if they must be decoded.

    Args:
        progress: called with the images done and their total.
    """
    total, done = sum(map(len, splits.values())), 0
    inspections: dict[str, list[Inspection]] = {}
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        for name, split in splits.items():
            inspections[name] = []
            starts = range(0, len(split), CHUNK)
            for chunk in pool.map(_inspect_chunk, [split] * len(starts), starts):
                inspections[name] += chunk
                done += len(chunk)
                if progress is not None:
                    progress(done, total)
    return inspections


def _inspect_chunk(split: ImageSplit, start: int) -> list[Inspection]:
    stop = min(start + CHUNK, len(split))
    return [inspect_image(split.images[index], split.names[index]) for index in range(start, stop)]


def inspect_image(source: EncodedImage, name: str) -> Inspection:
    """Decode one image completely and describe it; a fault is returned as text, not raised."""
    if isinstance(source, np.ndarray):
        values = hashlib.blake2b(np.ascontiguousarray(source).data, digest_size=16)
        height, width = source.shape[:2]
        return Inspection(values.digest(), height, width, ("grey",) if source.ndim == 2 else ())
    try:
        with open_image(source, name=name) as image:
            traits = tuple(_traits(image))
            other_format = _other_format(source, image)
            orientation = exif_orientation(image)
            pixels = decode(image)
            digest = hashlib.blake2b(f"{pixels.size}".encode(), digest_size=16)
            for _, part in strips(pixels):
                digest.update(part.tobytes())
    except DataError as error:
        remedy = error.remedy if isinstance(error, NoReaderError) else ""
        return Inspection(error=error.given, remedy=remedy)
    return Inspection(digest.digest(), pixels.height, pixels.width, traits, other_format, "", orientation)


def _traits(image: Image.Image) -> Iterable[str]:
    if image.mode in ("1", "L", "LA", "La"):
        yield "grey"
    if image.mode in SIXTEEN_BIT_MODES or ";16" in str(getattr(image, "tile", "")):
        yield "sixteen-bit"
    if image.mode in ("P", "PA"):
        yield "palette"
    if image.mode == "CMYK":
        yield "cmyk"
    if is_transparent(image):
        yield "alpha"
    if getattr(image, "n_frames", 1) > 1 and image.format != "MPO":
        yield "animated"
    if exif_orientation(image) != 1:
        yield "rotated"


def _other_format(source: EncodedImage, image: Image.Image) -> str:
    if not isinstance(source, Path) or image.format is None:
        return ""
    announced = Image.registered_extensions().get(source.suffix.lower())
    true = SAME_FORMAT.get(image.format, image.format)
    return true if announced is not None and announced != true else ""


def read_header_sizes(
    images: Sequence[Any] | np.ndarray, chosen: Sequence[int]
) -> Int64[np.ndarray, "chosen 2"]:
    """Return height and width of upright images (file or bytes); 0 0 if a header cannot be read."""
    sizes = np.zeros((len(chosen), 2), dtype=np.int64)

    def read_chunk(start: int) -> None:
        for row, index in enumerate(chosen[start : start + CHUNK], start):
            try:
                with open_image(images[index]) as image:
                    sizes[row] = upright_size(image)
            except DataError:  # the doctor tells why, once it decodes the image
                continue

    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        list(pool.map(read_chunk, range(0, len(chosen), CHUNK)))
    return sizes
