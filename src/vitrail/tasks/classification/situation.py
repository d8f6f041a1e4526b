"""The inputs of the automatic choices: data, machine and budget."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vitrail.core.errors import DataError
from vitrail.data.dataset import ImageDataset
from vitrail.data.images import open_image, read_image, upright_size
from vitrail.train.machine import Machine

PROBED_IMAGES = 64


@dataclass(frozen=True)
class Situation:
    """What is known before an experiment is chosen."""

    dataset: ImageDataset
    """The data without unusable images."""
    typical_size: tuple[int, int]
    """Median height and width of the training images in pixels."""
    is_grey: bool
    """Whether all probed training images are grey."""
    machine: Machine
    flops: float
    """Measured rate of matrix products, in FLOP/s."""
    budget_s: float
    """Wall-clock time for everything, in seconds."""


def describe_situation(
    dataset: ImageDataset, machine: Machine, *, flops: float, budget_s: float
) -> Situation:
    """Look at a few evenly spaced training images.

    Raises:
        DataError: none of them can be read.
    """
    images = dataset.train.images
    sizes, is_grey = [], True
    for index in np.unique(np.linspace(0, len(images) - 1, min(PROBED_IMAGES, len(images))).astype(int)):
        try:
            with open_image(images[index]) as opened:
                sizes.append(upright_size(opened))
            pixels = np.asarray(read_image(images[index], at_least=(32, 32)))
        except DataError:
            continue
        is_grey = is_grey and bool((pixels == pixels[..., :1]).all())
    if not sizes:
        raise DataError(
            f"none of the training images of {dataset.source} that were tried can be read",
            expected="images that Pillow opens",
            remedy=f"Run: vitrail check {dataset.source}",
        )
    height, width = (int(value) for value in np.median(np.array(sizes), axis=0))
    return Situation(
        dataset=dataset,
        typical_size=(height, width),
        is_grey=is_grey,
        machine=machine,
        flops=flops,
        budget_s=budget_s,
    )
