"""The samples of a split: decoded, resized, and cached in memory if they fit."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import psutil
import torch
import torch.nn.functional as F
from jaxtyping import UInt8
from torch import Tensor

from vitrail.core.errors import DataError
from vitrail.data.dataset import ImageSplit
from vitrail.data.images import open_image, upright_size
from vitrail.data.inspection import read_header_sizes
from vitrail.data.preprocessing import Box, Pixels, Preprocessing
from vitrail.data.settings import AugmentSettings

T = TypeVar("T")


CROP_MARGIN = 1.15  # of the target's side, kept for random crops: 256 for 224, the field's habit
CROP_ASPECT = (3 / 4, 4 / 3)  # Szegedy et al. 2015, section 6
CROP_TRIES = 10  # until a box of the drawn area and shape fits into the image
MEMORY_SHARE = 0.5  # of what is free, that pixels may take
PROBED_IMAGES = 64  # whose sizes tell what the images of a split are like


@dataclass(frozen=True, slots=True)
class ImageSample:
    """One image, ready to be stacked."""

    image: Pixels
    """Pixels at the model's input size."""
    label: int
    index: int


class ImageSource:
    """Load the images of a split at the model's input size; the pixel cache does not change the result.

    For training with random crops the cache holds larger images, and crops are taken from those.

    Args:
        augment: only ``min_crop_area`` is used here; the rest augments whole batches.
        cache: keep decoded pixels, if half of the free memory suffices. They are read when ``prepare`` is
            called or, without that, when the first sample is loaded.
    """

    def __init__(
        self,
        split: ImageSplit,
        preprocessing: Preprocessing,
        augment: AugmentSettings | None = None,
        *,
        cache: bool = False,
    ) -> None:
        self.split, self.preprocessing = split, preprocessing
        self.min_crop_area = 1.0 if augment is None else augment.min_crop_area
        self._pixels: Tensor | None = None
        self._failures: dict[int, DataError] = {}
        self._cache_size = self._choose_cache_size()
        height, width = self._cache_size
        self.cache_bytes = len(split) * 3 * height * width
        """Memory that the cache takes, or would take."""
        self.is_cached = cache and fits_in_memory(self.cache_bytes)

    def __len__(self) -> int:
        return len(self.split)

    def prepare(self) -> None:
        """Fill the cache, if there is one; the second call does nothing.

        Images that cannot be read are remembered, and ``load`` raises their error.
        """
        if not self.is_cached or self._pixels is not None:
            return
        pixels = torch.empty((len(self.split), 3, *self._cache_size), dtype=torch.uint8)
        stored = self.preprocessing.model_copy(update={"image_size": self._cache_size})

        def read(index: int) -> None:
            pixels[index] = stored.read(self.split.images[index], name=self._name(index))

        results = read_all(read, len(self.split))
        self._failures = {i: result for i, result in enumerate(results) if isinstance(result, DataError)}
        self._pixels = pixels

    def load(self, index: int, generator: torch.Generator | None) -> ImageSample:
        """Return one image, randomly cropped by the generator; without one, whole or centre-cropped."""
        self.prepare()
        if self._pixels is not None:
            image = self._load_cached(index, generator)
        else:
            image = self._load_original(index, generator)
        return ImageSample(image, int(self.split.labels[index]), index)

    def _load_cached(self, index: int, generator: torch.Generator | None) -> Pixels:
        assert self._pixels is not None
        if index in self._failures:
            raise self._failures[index]
        pixels = self._pixels[index]
        crops = generator is not None and self.min_crop_area < 1
        if crops or self._cache_size != self.preprocessing.image_size:
            size = self._cache_size
            whole = "squash" if self.preprocessing.resize == "letterbox" else self.preprocessing.resize
            cached = self.preprocessing.model_copy(update={"resize": whole})  # its bars are in the cache
            box = self._random_box(size, generator, cached) if crops else cached.evaluation_box(size)
            pixels = _slice(pixels, box)
        if pixels.shape[-2:] == self.preprocessing.image_size:
            return pixels
        target = list(self.preprocessing.image_size)
        return F.interpolate(pixels[None], target, mode="bilinear", antialias=True)[0]

    def _load_original(self, index: int, generator: torch.Generator | None) -> Pixels:
        source = self.split.images[index]
        if generator is None or self.min_crop_area >= 1:
            return self.preprocessing.read(source, name=self._name(index))
        with open_image(source, name=self._name(index)) as image:
            box = self._random_box(upright_size(image), generator, self.preprocessing)
            return self.preprocessing.cut(image, box)

    def _name(self, index: int) -> str:
        source = self.split.images[index]
        return str(source) if isinstance(source, Path) else self.split.names[index]

    def _random_box(
        self, size: tuple[int, int], generator: torch.Generator | None, preprocessing: Preprocessing
    ) -> Box:
        """Draw a box of random area and aspect, normalised by image height and width.

        The aspect is that of the input, times a factor within ``CROP_ASPECT``. Of a squashed image, or one
        between bars, it is a box of the input, so that a model trains on images as it will see them.

        Paper: Szegedy et al. 2015, "Going deeper with convolutions", section 6.
        """
        is_cropped = preprocessing.resize == "crop"
        frame = (0.0, 0.0, 1.0, 1.0) if is_cropped else preprocessing.evaluation_box(size)
        height, width = size if is_cropped else preprocessing.image_size
        target_height, target_width = preprocessing.image_size
        draws = torch.rand(2 * CROP_TRIES + 2, generator=generator).tolist()
        low, high = math.log(CROP_ASPECT[0]), math.log(CROP_ASPECT[1])
        for area_draw, aspect_draw in zip(draws[2::2], draws[3::2], strict=True):
            area = self.min_crop_area + (1 - self.min_crop_area) * area_draw
            aspect = math.exp(low + (high - low) * aspect_draw) * target_width / target_height
            share_x = math.sqrt(area * aspect * height / width)
            share_y = math.sqrt(area / aspect * width / height)
            if share_x <= 1 and share_y <= 1:
                left, top = draws[0] * (1 - share_x), draws[1] * (1 - share_y)
                return _within(frame, (left, top, left + share_x, top + share_y))
        return preprocessing.evaluation_box(size)

    def _choose_cache_size(self) -> tuple[int, int]:
        """Return the size of cached pixels: the input's, or larger if crops are taken from them."""
        target = self.preprocessing.image_size
        if self.min_crop_area >= 1 or not len(self.split):
            return target
        larger = (math.ceil(target[0] * CROP_MARGIN), math.ceil(target[1] * CROP_MARGIN))
        probed = np.unique(np.linspace(0, len(self.split) - 1, PROBED_IMAGES).astype(int))
        read = read_header_sizes(self.split.images, probed.tolist())
        sizes = {(height, width) for height, width in read.tolist() if height}
        # Images of one size, not larger than what would be kept, are kept as they are, without bars.
        if len(sizes) == 1 and self.preprocessing.resize != "letterbox":
            height, width = sizes.pop()
            if height <= larger[0] and width <= larger[1]:
                return (height, width)
        return larger


def _within(frame: Box, box: Box) -> Box:
    left, top, right, bottom = frame
    width, height = right - left, bottom - top
    return left + width * box[0], top + height * box[1], left + width * box[2], top + height * box[3]


def _slice(pixels: Pixels, box: Box) -> UInt8[Tensor, "3 rows columns"]:
    height, width = pixels.shape[-2:]
    left, right = round(box[0] * width), round(box[2] * width)
    top, bottom = round(box[1] * height), round(box[3] * height)
    top, left = min(top, height - 1), min(left, width - 1)
    return pixels[:, top : max(bottom, top + 1), left : max(right, left + 1)]


def read_all(read: Callable[[int], T], count: int) -> list[T | DataError]:
    """Call a reader with each index, in several threads; a ``DataError`` becomes the result."""

    def try_to_read(index: int) -> T | DataError:
        try:
            return read(index)
        except DataError as error:
            return error

    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        return list(pool.map(try_to_read, range(count)))


def fits_in_memory(num_bytes: int) -> bool:
    """Tell whether a cache takes at most half of the free memory."""
    return num_bytes <= free_memory_bytes() * MEMORY_SHARE


def free_memory_bytes() -> int:
    """Return how much memory this process may still take, on the machine and in its container."""
    free = int(psutil.virtual_memory().available)
    limits = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
    try:
        most, used = (int(path.read_text()) for path in limits)
    except (OSError, ValueError):  # no container, or "max"
        return free
    return min(free, max(most - used, 0))
