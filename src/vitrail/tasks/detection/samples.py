"""The samples of a split with boxes: decoded, resized, augmented, cached in memory, and batched."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Float32, Int, Int64, UInt8
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from vitrail.core.boxes import box_area, clip_boxes
from vitrail.core.errors import DataError
from vitrail.data.box_preprocessing import BoxPreprocessing
from vitrail.data.images import open_image, upright_size
from vitrail.data.source import CROP_MARGIN, fits_in_memory, read_all
from vitrail.models.contract import BoxTargets
from vitrail.tasks.detection.augment import BoxedImage, augment_image, mosaic
from vitrail.tasks.detection.dataset import BoxSplit
from vitrail.tasks.detection.settings import BoxAugmentSettings
from vitrail.train.objective import TensorBatch

MOSAIC_PARTNERS = 3  # beside the image itself


@dataclass(frozen=True, slots=True)
class BoxSample:
    """One image with its boxes, ready to be batched."""

    image: UInt8[Tensor, "3 height width"]
    """Pixels at the model's input size; images of a split may differ in size."""
    boxes: Float32[Tensor, "n 4"]
    """Centre, width and height (cxcywh), normalised by that image; may be empty."""
    labels: Int64[Tensor, " n"]
    index: int
    original_size: tuple[int, int]
    """Height and width of the upright image before resizing; of a mosaic, those of its first image."""
    is_crowd: Bool[Tensor, " n"]
    """Whether each box stands for a group of objects, which need not be found; none does in training."""
    areas: Float[Tensor, " n"]
    """As annotated, in pixels of the original image; 0 where they are not, and in training."""


_Stored = tuple[UInt8[Tensor, "3 height width"], tuple[int, int]]
"""The pixels of an image at the input size, or larger; its original height and width."""


class BoxSource:
    """Load the images of a split with their boxes; the pixel cache does not change the result.

    With a generator, samples are for training: boxes are clipped to the image, crowds and boxes without an
    area are left out, and the image is augmented. Without one, all boxes are there, as annotated.

    Args:
        augment: by default none.
        cache: keep decoded pixels, if half of the free memory suffices. They are read when ``prepare`` is
            called or, without that, when the first sample is loaded.
    """

    def __init__(
        self,
        split: BoxSplit,
        preprocessing: BoxPreprocessing,
        augment: BoxAugmentSettings | None = None,
        *,
        cache: bool = False,
    ) -> None:
        self.split, self.preprocessing = split, preprocessing
        self.augment = BoxAugmentSettings.from_tree({}) if augment is None else augment
        self._stored: list[_Stored | DataError] | None = None
        # of an unknown size: as many pixels as an input has at most
        sizes = [
            (height, width) if height and width else preprocessing.image_size
            for height, width in split.sizes.tolist()
        ]
        self.cache_bytes = sum(3 * math.prod(self._stored_size(size)) for size in sizes)
        """Memory that the cache takes, or would take, if images have the sizes that the split says."""
        self.is_cached = cache and fits_in_memory(self.cache_bytes)

    def __len__(self) -> int:
        return len(self.split)

    def prepare(self) -> None:
        """Fill the cache if there is one; the second call does nothing.

        Images that cannot be read are remembered, and ``load`` raises their error.
        """
        if not self.is_cached or self._stored is not None:
            return
        self._stored = read_all(self._read, len(self.split))

    def load(self, index: int, generator: torch.Generator | None) -> BoxSample:
        """Return one image with its boxes, augmented if there is a generator.

        Raises:
            DataError: the image, or in training one that a mosaic joins, cannot be read; the message names
                it.
        """
        self.prepare()
        if generator is None:
            image, original_size = self._pixels(index)
            size = self.preprocessing.input_size(original_size)
            if image.shape[-2:] != size:
                image = F.interpolate(image[None], list(size), mode="bilinear", antialias=True)[0]
            of_size, annotated = original_size, (self.split.boxes, self.split.labels, self.split.is_crowd)
            boxes, labels, is_crowd = (torch.tensor(each[index]) for each in annotated)
            areas = torch.tensor(self.split.areas[index])
        else:
            original_size, boxed = self._boxed(index)
            size = self.preprocessing.input_size(original_size)
            if self.augment.mosaic and float(torch.rand((), generator=generator)) < self.augment.mosaic:
                partners = torch.randint(len(self), (MOSAIC_PARTNERS,), generator=generator).tolist()
                boxed = mosaic([boxed, *(self._boxed(partner)[1] for partner in partners)], generator)
            image, boxes, labels, _ = augment_image(boxed, size, self.preprocessing, self.augment, generator)
            of_size, is_crowd = (image.shape[-2], image.shape[-1]), torch.zeros_like(labels, dtype=torch.bool)
            areas = torch.zeros(len(labels), dtype=torch.float64)
        boxes = self.preprocessing.to_model(boxes, of_size)
        return BoxSample(image, boxes, labels, index, original_size, is_crowd, areas)

    def _boxed(self, index: int) -> tuple[tuple[int, int], BoxedImage]:
        image, original_size = self._pixels(index)
        annotated = torch.tensor(self.split.boxes[index])
        boxes = clip_boxes(annotated, original_size)
        is_kept = annotated.isfinite().all(dim=-1) & (box_area(boxes) > 0)
        is_kept &= ~torch.tensor(self.split.is_crowd[index])
        vertical, horizontal = image.shape[-2] / original_size[0], image.shape[-1] / original_size[1]
        boxes = boxes[is_kept] * boxes.new_tensor([horizontal, vertical, horizontal, vertical])
        labels = torch.tensor(self.split.labels[index])[is_kept]
        return original_size, BoxedImage(image, boxes, labels, boxes.new_ones(len(boxes)))

    def _pixels(self, index: int) -> _Stored:
        stored = self._read(index) if self._stored is None else self._stored[index]
        if isinstance(stored, DataError):
            raise stored
        return stored

    def _read(self, index: int) -> _Stored:
        source = self.split.images[index]
        name = str(source) if isinstance(source, Path) else self.split.names[index]
        with open_image(source, name=name) as image:
            original_size = upright_size(image)
            return self.preprocessing.decode(image, size=self._stored_size(original_size)), original_size

    def _stored_size(self, original_size: tuple[int, int]) -> tuple[int, int]:
        """Return the cached size: the input size, or up to the original one if crops are enlarged."""
        height, width = self.preprocessing.input_size(original_size)
        if not (self.augment.crop or self.augment.scale):
            return (height, width)
        factor = min(CROP_MARGIN, max(original_size[0] / height, original_size[1] / width, 1.0))
        return (round(height * factor), round(width * factor))


@dataclass(frozen=True)
class DetectionBatch(TensorBatch):
    """Images of several sizes with their boxes; ``len`` is the number of images."""

    images: UInt8[Tensor, "batch 3 height width"]
    """Pixels, each image at the top left, padded with zeros right and below."""
    sizes: Int[Tensor, "batch 2"]
    """Height and width of each image without padding."""
    is_padded: bool
    """Whether any image is padded."""
    targets: BoxTargets
    """The ground truth, without crowds."""
    samples: tuple[BoxSample, ...]
    """The samples without their pixels, on the CPU."""


def join_samples(samples: Sequence[BoxSample], num_classes: int) -> DetectionBatch:
    """Stack images, padded to the largest height and width, and batch their boxes.

    Boxes that are not finite, or whose corners are inverted, are left out.

    Raises:
        DataError: a label is not among the classes.
    """
    sizes = torch.tensor([sample.image.shape[1:] for sample in samples], dtype=torch.int64)
    largest = sizes.amax(dim=0)
    images = torch.zeros(len(samples), 3, *largest.tolist(), dtype=torch.uint8)
    for padded, sample in zip(images, samples, strict=True):
        _, height, width = sample.image.shape
        padded[:, :height, :width] = sample.image
    usable = tuple(_usable(sample, num_classes) for sample in samples)
    rows = [(sample.labels[~sample.is_crowd], sample.boxes[~sample.is_crowd]) for sample in usable]
    labels, boxes = (pad_sequence(list(part), batch_first=True) for part in zip(*rows, strict=True))
    counts = torch.tensor([len(part) for part, _ in rows], dtype=torch.int64)
    is_padded = bool((sizes != largest).any())
    return DetectionBatch(images, sizes, is_padded, BoxTargets(labels, boxes, counts), usable)


def _usable(sample: BoxSample, num_classes: int) -> BoxSample:
    is_box = sample.boxes.isfinite().all(dim=-1) & (sample.boxes[:, 2:] >= 0).all(dim=-1)
    labels = sample.labels[is_box]
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < num_classes:
        raise DataError(
            f"image {sample.index} has boxes with the labels {sorted(set(labels.tolist()))}",
            expected=f"labels from 0 to {num_classes - 1}, for {num_classes} classes",
            remedy="Number the classes from 0 without gaps, or correct the number of classes",
        )
    return replace(
        sample,
        image=sample.image.new_empty(3, 0, 0),
        boxes=sample.boxes[is_box],
        labels=labels,
        is_crowd=sample.is_crowd[is_box],
        areas=sample.areas[is_box],
    )
