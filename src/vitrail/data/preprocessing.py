"""Bring an image of any shape to a model's input; stored with every checkpoint and used by every command."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Literal, Self

import numpy as np
import torch
from jaxtyping import Float, UInt8
from PIL import Image
from pydantic import Field
from torch import Tensor

from vitrail.core.config import Config, ImageSize
from vitrail.core.errors import DataError
from vitrail.core.tensors import vector_of
from vitrail.data.dataset import EncodedImage
from vitrail.data.images import decode, open_image, upright_size

Pixels = UInt8[Tensor, "3 height width"]
Images = UInt8[Tensor, "n 3 height width"]
Box = tuple[float, float, float, float]
"""Left, top, right and bottom as shares of an image's width and height; beyond it are bars."""
Deviation = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Resize = Literal["squash", "crop", "letterbox"]
"""How an image of another shape than the input's is brought to it."""

RESAMPLING = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
REDUCING_GAP = 3.0  # Pillow's documentation: close to the quality of resizing in one step, and faster


class Normalisation(Config):
    """How pixels become a model's numbers."""

    mean: tuple[float, float, float] = (0.5, 0.5, 0.5)
    """Mean of each channel that is subtracted, for pixels in 0..1."""
    std: tuple[Deviation, Deviation, Deviation] = (0.5, 0.5, 0.5)
    """Standard deviation of each channel that is divided by, for pixels in 0..1."""

    def normalise(
        self, images: UInt8[Tensor, "batch 3 height width"]
    ) -> Float[Tensor, "batch 3 height width"]:
        """Return ``(pixels / 255 - mean) / std`` of each channel in float32, on the device of the images."""
        pixels = images.float()
        deviation = vector_of(self.std, pixels)[:, None, None]
        shift = vector_of(self.mean, pixels)[:, None, None]
        return pixels.mul_(1 / (255 * deviation)).sub_(shift / deviation)


class Preprocessing(Normalisation):
    """How every image is brought to the model's input."""

    image_size: ImageSize
    """Height and width in pixels."""
    resize: Resize = "crop"
    """Squash an image of another shape, cut the largest centred box of the target's shape out of it, or show
    all of it undistorted between bars of the mean colour."""
    crop_fraction: float = Field(1.0, gt=0, le=1)
    """Share of that box's sides, or of the squashed image's, that is kept around the centre; published
    models were often tested with 0.875, that is 224 of 256 pixels."""
    interpolation: Literal["bilinear", "bicubic"] = "bicubic"
    """Filter of the resizing, always with antialiasing."""

    def read(self, source: EncodedImage, *, name: str | None = None) -> Pixels:
        """Read one image at the input's size."""
        if isinstance(source, np.ndarray) and source.shape[:2] == self.image_size:
            return _pixels(source)
        with open_image(source, name=name) as image:
            box = self.evaluation_box(upright_size(image))
            return self.cut(image, box)

    def to_uint8(self, image: Image.Image) -> Pixels:
        return self._resize(image, self.evaluation_box((image.height, image.width)))

    def cut(self, image: Image.Image, box: Box) -> Pixels:
        """Decode a box (shares) of an opened upright image, no larger than needed, and resize it."""
        height, width = self.image_size
        needed = (math.ceil(height / (box[3] - box[1])), math.ceil(width / (box[2] - box[0])))
        return self._resize(decode(image, at_least=needed), box)

    def evaluation_box(self, size: tuple[int, int]) -> Box:
        """Return the part of an image of this height and width that is used without augmentation.

        >>> Preprocessing(image_size=(32, 32), resize="letterbox").evaluation_box((64, 32))
        (-0.5, 0.0, 1.5, 1.0)
        """
        vertical = horizontal = 1.0
        if self.resize != "squash":
            shape = (self.image_size[0] / size[0], self.image_size[1] / size[1])
            scale = max(shape) if self.resize == "crop" else min(shape)
            vertical, horizontal = shape[0] / scale, shape[1] / scale
        vertical, horizontal = self.crop_fraction * vertical, self.crop_fraction * horizontal
        return (0.5 - horizontal / 2, 0.5 - vertical / 2, 0.5 + horizontal / 2, 0.5 + vertical / 2)

    def with_statistics(self, images: Images) -> Self:
        """Return a copy with the mean and deviation of some images, such as ``sample_images`` reads."""
        mean, std = channel_statistics(images)
        return self.with_changes({"mean": mean, "std": std})

    def _resize(self, image: Image.Image, box: Box) -> Pixels:
        height, width = self.image_size
        left, top, right, bottom = box
        inner = (max(left, 0.0), max(top, 0.0), min(right, 1.0), min(bottom, 1.0))
        if inner == box:
            return _pixels(self._resample(image, box, (width, height)))
        columns = _pixel_span(left, right, inner[0], inner[2], width)
        rows = _pixel_span(top, bottom, inner[1], inner[3], height)
        framed = np.full((height, width, 3), np.rint(255 * np.array(self.mean)), dtype=np.uint8)
        if inner[0] < inner[2] and inner[1] < inner[3]:
            seen = self._resample(image, inner, (columns.stop - columns.start, rows.stop - rows.start))
            framed[rows, columns] = seen if seen.ndim == 3 else seen[..., None]
        return _pixels(framed)

    def _resample(self, image: Image.Image, box: Box, size: tuple[int, int]) -> np.ndarray:
        left, top, right, bottom = box
        pixel_box = (left * image.width, top * image.height, right * image.width, bottom * image.height)
        if pixel_box == (0, 0, *size):
            return np.asarray(image)
        resampling = RESAMPLING[self.interpolation]
        return np.asarray(image.resize(size, resampling, box=pixel_box, reducing_gap=REDUCING_GAP))


def channel_statistics(images: Images) -> tuple[list[float], list[float]]:
    """Return mean and standard deviation of each channel over all pixels, for pixels in 0..1.

    A constant channel gets a deviation of 1/255, one grey level, so that it can be divided by.
    """
    totals = torch.zeros(2, 3, dtype=torch.float64)
    for part in torch.split(images, 256):
        pixels = part.double().div_(255)
        totals += torch.stack([pixels.sum(dim=(0, 2, 3)), pixels.square().sum(dim=(0, 2, 3))])
    mean, square = totals / max(images[:, 0].numel(), 1)
    std = (square - mean.square()).clamp(min=0).sqrt().clamp(min=1 / 255)
    return [round(value, 6) for value in mean.tolist()], [round(value, 6) for value in std.tolist()]


def sample_images(
    images: Sequence[EncodedImage] | np.ndarray, preprocessing: Preprocessing, *, max_images: int = 2000
) -> Images:
    """Read up to ``max_images`` images, evenly spaced, for statistics; the unreadable are left out.

    Raises:
        DataError: none of them can be read.
    """
    if preprocessing.resize == "letterbox":  # whose bars are no part of the images
        preprocessing = preprocessing.with_changes({"resize": "squash"})
    chosen = np.unique(np.linspace(0, len(images) - 1, num=min(max_images, len(images))).astype(int))
    pixels, failure = [], None
    for index in chosen:
        try:
            pixels.append(preprocessing.read(images[index]))
        except DataError as error:
            failure = error
    if not pixels:
        raise failure or DataError(
            "there is no image to take statistics of", expected="at least one", remedy="Check the data set"
        )
    return torch.stack(pixels)


def _pixel_span(low: float, high: float, begin: float, end: float, length: int) -> slice:
    """Return the pixels, at least one, of ``begin`` to ``end`` where ``low`` to ``high`` fill this length."""
    scale = length / (high - low)
    count = max(round((end - begin) * scale), 1)
    start = ((begin + end) / 2 - low) * scale - count / 2
    start = min(round(round(start, 6)), length - count)  # half pixels as in ImageOps.pad of Pillow
    return slice(start, start + count)


def _pixels(values: np.ndarray) -> Pixels:
    if values.ndim == 2:
        return torch.from_numpy(np.repeat(values[None], 3, axis=0))
    return torch.from_numpy(values.transpose(2, 0, 1).copy())
