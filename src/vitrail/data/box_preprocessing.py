"""Map images of any shape and their boxes to a model's input and back; stored with every detector."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Self

import numpy as np
import torch
from jaxtyping import Float, UInt8
from PIL import Image
from torch import Tensor

from vitrail.core.boxes import Boxes, cxcywh_to_xyxy, xyxy_to_cxcywh
from vitrail.core.config import ImageSize
from vitrail.data.dataset import EncodedImage
from vitrail.data.images import decode, open_image, upright_size
from vitrail.data.preprocessing import (
    REDUCING_GAP,
    RESAMPLING,
    Normalisation,
    Pixels,
    Preprocessing,
    channel_statistics,
    sample_images,
)

STATISTICS_BYTES = 2**28  # of pixels, that statistics are taken of
STATISTICS_IMAGES = 2000  # at most


class BoxPreprocessing(Normalisation):
    """How every image, with its boxes, is brought to a detector's input.

    The whole image is always resized to the whole input, so normalised boxes are the same for both, whatever
    the resizing; padding is added when images are batched, right and below, and is not part of the image that
    boxes are normalised by.
    """

    task: Literal["detection"] = "detection"
    """What is prepared, which tells these settings from those for images without boxes."""
    image_size: ImageSize
    """Height and width in pixels."""
    resize: Literal["fit", "squash", "shortest"] = "fit"
    """How an image is brought to it: scaled to fit into ``image_size`` with its aspect kept; squashed to it;
    or scaled so that its shorter side is the shorter one of ``image_size``, unless its longer side would
    exceed the longer one (Carion et al. 2020, section 4)."""
    interpolation: Literal["bilinear", "bicubic"] = "bilinear"
    """Filter of the resizing, always with antialiasing."""

    def input_size(self, size: tuple[int, int]) -> tuple[int, int]:
        """Return the height and width to which an image of this height and width is resized.

        >>> BoxPreprocessing(image_size=(800, 1333), resize="shortest").input_size((480, 640))
        (800, 1066)
        """
        if self.resize == "squash":
            return self.image_size
        height, width = size
        if self.resize == "fit":
            scale = min(self.image_size[0] / height, self.image_size[1] / width)
            fitted = (round(height * scale), round(width * scale))
            return (max(fitted[0], 1), max(fitted[1], 1))
        shorter, longer = min(self.image_size), max(self.image_size)
        scaled = shorter * max(size) // min(size)  # whole pixels, rounded down as published
        if scaled > longer:
            shorter, scaled = max(round(longer * min(size) / max(size)), 1), longer
        return (shorter, scaled) if height <= width else (scaled, shorter)

    def evaluation_box(self, size: tuple[int, int]) -> tuple[float, float, float, float]:
        """Return what is used of an image: all of it."""
        return (0.0, 0.0, 1.0, 1.0)

    def read(self, source: EncodedImage, *, name: str | None = None) -> Pixels:
        """Read one image at the input's size."""
        with open_image(source, name=name) as image:
            return self.decode(image)

    def decode(self, image: Image.Image, *, size: tuple[int, int] | None = None) -> Pixels:
        """Decode an opened image, no larger than needed, and resize it, by default to the input size."""
        size = self.input_size(upright_size(image)) if size is None else size
        return self._resize(decode(image, at_least=size), size)

    def to_uint8(self, image: Image.Image) -> Pixels:
        return self._resize(image, self.input_size((image.height, image.width)))

    def to_model(self, boxes_xyxy: Boxes, original_size: tuple[int, int]) -> Boxes:
        """Convert xyxy in pixels of an upright image of this height and width to normalised cxcywh."""
        return xyxy_to_cxcywh(boxes_xyxy / _sides(boxes_xyxy, original_size))

    def to_image(self, boxes_cxcywh: Boxes, original_size: tuple[int, int]) -> Boxes:
        """Convert a model's boxes, normalised without padding, to xyxy in pixels; inverts ``to_model``."""
        return cxcywh_to_xyxy(boxes_cxcywh) * _sides(boxes_cxcywh, original_size)

    def denormalise(
        self, images: Float[Tensor, "batch 3 height width"]
    ) -> UInt8[Tensor, "batch 3 height width"]:
        """Return the pixels of normalised images, rounded and clipped."""
        std = torch.tensor(self.std, device=images.device)[:, None, None]
        mean = torch.tensor(self.mean, device=images.device)[:, None, None]
        return (images * (255 * std)).add_(255 * mean).round_().clamp_(0, 255).to(torch.uint8)

    def with_statistics(self, images: Sequence[Any] | np.ndarray) -> Self:
        """Return a copy with the mean and deviation of some images, evenly spaced among those given.

        Args:
            images: as those of a ``BoxSplit``; unreadable ones are left out.
        """
        height, width = self.image_size
        squashed = Preprocessing(
            image_size=self.image_size, resize="squash", interpolation=self.interpolation
        )
        most = min(max(STATISTICS_BYTES // (3 * height * width), 1), STATISTICS_IMAGES)
        mean, std = channel_statistics(sample_images(images, squashed, max_images=most))
        return self.with_changes({"mean": mean, "std": std})

    def _resize(self, image: Image.Image, size: tuple[int, int]) -> Pixels:
        height, width = size
        if (image.height, image.width) != size:
            image = image.resize((width, height), RESAMPLING[self.interpolation], reducing_gap=REDUCING_GAP)
        return torch.from_numpy(np.asarray(image).transpose(2, 0, 1).copy())


def _sides(boxes: Boxes, size: tuple[int, int]) -> Float[Tensor, " 4"]:
    """Return the units of a box's numbers: width, height, width, height."""
    height, width = size
    return boxes.new_tensor([width, height, width, height])
