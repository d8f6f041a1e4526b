"""Batches of images of several sizes with their boxes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from vitrail.core.errors import DataError
from vitrail.models.contract import BoxTargets
from vitrail.tasks.detection.samples import BoxSample
from vitrail.train.objective import TensorBatch


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
    """The ground truth."""
    crowds: BoxTargets
    """Boxes around groups of objects, which need not be found; none in training."""
    indices: Int[Tensor, " batch"]
    """Index of each image in its source."""
    original_sizes: Int[Tensor, "batch 2"]
    """Height and width of each image before it was resized."""


def join_samples(samples: Sequence[BoxSample], num_classes: int) -> DetectionBatch:
    """Stack images, padded to the largest height and width, and batch their boxes.

    Boxes that are not finite, or whose corners are inverted, are left out.

    Raises:
        DataError: a label is not among the classes.
    """
    sizes = torch.tensor([sample.image.shape[1:] for sample in samples], dtype=torch.int64)
    largest = sizes.amax(dim=0)
    images = torch.zeros(len(samples), 3, *largest.tolist(), dtype=torch.uint8)
    for place, sample in zip(images, samples, strict=True):
        _, height, width = sample.image.shape
        place[:, :height, :width] = sample.image
    rows = [_boxes_of(sample, num_classes) for sample in samples]
    return DetectionBatch(
        images=images,
        sizes=sizes,
        is_padded=bool((sizes != largest).any()),
        targets=_join_rows([(labels[~is_crowd], boxes[~is_crowd]) for labels, boxes, is_crowd in rows]),
        crowds=_join_rows([(labels[is_crowd], boxes[is_crowd]) for labels, boxes, is_crowd in rows]),
        indices=torch.tensor([sample.index for sample in samples], dtype=torch.int64),
        original_sizes=torch.tensor([sample.original_size for sample in samples], dtype=torch.int64),
    )


def boxes_of_rows(targets: BoxTargets) -> list[tuple[Int[Tensor, " _"], Float[Tensor, "_ 4"]]]:
    """Return labels and boxes of each image, without padding."""
    counts = targets.counts.tolist()
    rows = zip(targets.labels, targets.boxes, counts, strict=True)
    return [(labels[:count], boxes[:count]) for labels, boxes, count in rows]


def _boxes_of(
    sample: BoxSample, num_classes: int
) -> tuple[Int[Tensor, " n"], Float[Tensor, "n 4"], Bool[Tensor, " n"]]:
    is_box = sample.boxes.isfinite().all(dim=-1) & (sample.boxes[:, 2:] >= 0).all(dim=-1)
    labels = sample.labels[is_box]
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < num_classes:
        raise DataError(
            f"image {sample.index} has boxes with the labels {sorted(set(labels.tolist()))}",
            expected=f"labels from 0 to {num_classes - 1}, for {num_classes} classes",
            remedy="Number the classes from 0 without gaps, or correct the number of classes",
        )
    return labels, sample.boxes[is_box], sample.is_crowd[is_box]


def _join_rows(rows: Sequence[tuple[Int[Tensor, " _"], Float[Tensor, "_ 4"]]]) -> BoxTargets:
    counts = [len(labels) for labels, _ in rows]
    longest = max(counts)
    joined_labels = torch.zeros(len(rows), longest, dtype=torch.int64)
    joined_boxes = torch.zeros(len(rows), longest, 4)
    for row, ((labels, boxes), count) in enumerate(zip(rows, counts, strict=True)):
        joined_labels[row, :count] = labels
        joined_boxes[row, :count] = boxes
    return BoxTargets(joined_labels, joined_boxes, torch.tensor(counts, dtype=torch.int64))
