"""Images of classes that a given CLIP is attacked on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Int, UInt8
from torch import Tensor

from vitrail.core.errors import DataError
from vitrail.data.source import ImageSource
from vitrail.tasks.classification.opening import open_dataset
from vitrail.tasks.classification.settings import ImageDataSettings
from vitrail.tasks.contrastive.predictor import ImageTextEncoder


def read_images(
    source: str, encoder: ImageTextEncoder, *, count: int, max_classes: int, seed: int
) -> tuple[UInt8[Tensor, "images 3 height width"], Int[Tensor, " images"], Sequence[str]]:
    """Return some test images of a data set at the model's size, their classes and the names of all classes.

    Args:
        source: any images with classes that ``vitrail train`` takes.
        encoder: whose preparation is used.
        count: most images; they are drawn.
        max_classes: most classes; where there are more, they are drawn.
        seed: of the draws.

    Raises:
        DataError: the data cannot be opened, or has less than two images or classes.
    """
    size = encoder.preprocessing.image_size
    dataset = open_dataset(source, settings=ImageDataSettings(source=source, image_size=size))
    names = [name.replace("_", " ") for name in dataset.class_names]
    if len(names) < 2 or len(dataset.test) < 2:
        raise DataError(
            f"{source} has {len(names)} classes and {len(dataset.test)} test images",
            expected="at least two of each",
            remedy="Name a folder with one folder of images for each class",
        )
    random = np.random.default_rng(seed)
    classes = np.sort(random.permutation(len(names))[:max_classes])
    places = np.flatnonzero(np.isin(dataset.test.labels, classes))
    samples = ImageSource(dataset.test.take(random.permutation(places)[:count]), encoder.preprocessing)
    loaded = [samples.load(index, None) for index in range(len(samples))]
    labels = torch.from_numpy(np.searchsorted(classes, [sample.label for sample in loaded]))
    return torch.stack([sample.image for sample in loaded]), labels, [names[each] for each in classes]
