"""The images that a model and its export are compared on: of a data set, or generated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, repeat
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, UInt8
from torch import Tensor

from vitrail.core.errors import DataError
from vitrail.data.box_preprocessing import BoxPreprocessing
from vitrail.data.preprocessing import Preprocessing
from vitrail.data.source import ImageSample
from vitrail.data.stream import SampleSource
from vitrail.engines.export.contract import Inputs
from vitrail.engines.export.package import PortSpec
from vitrail.models.checkpoint import LoadedModel
from vitrail.tasks.classification.objective import ClassificationObjective, ImageBatch
from vitrail.tasks.detection.objective import DetectionObjective
from vitrail.tasks.detection.samples import BoxSample, DetectionBatch
from vitrail.train.objective import Objective

COARSE = 7  # rows and columns of the noise that a generated image is upsampled from
BATCH_SIZES = (1, 3, 2, 8)  # in turn, to detect a graph that is right for one batch size only


class Samples(NamedTuple):
    """Images, possibly with labels."""

    objective: Objective
    """Collates and scores."""
    source: SampleSource
    """Compared and scored images."""
    title: str
    """Description for the user."""
    has_labels: bool
    """Whether scores are meaningful."""
    calibration: SampleSource | None = None
    """Images for int8 calibration."""


class GeneratedImages:
    """Images of smooth noise without labels; a ``SampleSource``.

    Args:
        sizes: height and width of each.
        has_boxes: whether they are detection samples.
    """

    def __init__(self, sizes: Sequence[tuple[int, int]], *, has_boxes: bool) -> None:
        self.sizes, self.has_boxes = sizes, has_boxes

    def __len__(self) -> int:
        return len(self.sizes)

    def load(self, index: int, generator: torch.Generator | None) -> ImageSample | BoxSample:
        pixels = draw_image(self.sizes[index], seed=index)
        if not self.has_boxes:
            return ImageSample(image=pixels, label=0, index=index)
        none = torch.zeros(0)
        return BoxSample(
            image=pixels,
            labels=none.long(),
            boxes=torch.zeros(0, 4),
            is_crowd=none.bool(),
            index=index,
            original_size=self.sizes[index],
        )


def draw_image(size: tuple[int, int], *, seed: int) -> UInt8[Tensor, "3 height width"]:
    """Draw an image of smooth noise in all colours."""
    noise = torch.rand(1, 3, COARSE, COARSE, generator=torch.Generator().manual_seed(seed))
    smooth = F.interpolate(noise, size=size, mode="bilinear", antialias=True)[0]
    return (255 * smooth).round().to(torch.uint8)


def generate_samples(loaded: LoadedModel, count: int) -> Samples:
    """Return generated images of the model's own size, if its data is not available."""
    title = f"{count} generated images"
    if loaded.preprocessing.get("task") == "detection":
        of_boxes = BoxPreprocessing.from_tree(loaded.preprocessing)
        height, width = of_boxes.image_size
        # The rest is padding, as for images of varying aspect ratios.
        sizes = [(height, width) if index % 2 else (height, max(width * 3 // 4, 1)) for index in range(count)]
        config: Any = loaded.model.config
        objective: Objective = DetectionObjective(len(loaded.class_names), of_boxes, scoring=config.scoring)
        return Samples(objective, GeneratedImages(sizes, has_boxes=True), title, has_labels=False)
    preprocessing = Preprocessing.from_tree(loaded.preprocessing)
    objective = ClassificationObjective(len(loaded.class_names), preprocessing)
    source = GeneratedImages([preprocessing.image_size] * count, has_boxes=False)
    return Samples(objective, source, title, has_labels=False)


def batches_of(
    samples: Samples, source: SampleSource, indices: Sequence[int], ports: Sequence[PortSpec]
) -> Iterator[tuple[Any, Inputs]]:
    """Yield batches of several sizes, each with the inputs of an exported model.

    Unreadable samples are left out.

    Args:
        indices: of the samples, in order.
        ports: the inputs of the exported model.
    """
    start = 0
    for size in chain(BATCH_SIZES, repeat(BATCH_SIZES[-1])):
        if start >= len(indices):
            return
        read = []
        for index in indices[start : start + size]:
            try:
                read.append(source.load(index, None))
            except DataError:
                continue
        start += size
        if read:
            batch = samples.objective.collate(read, None)
            yield batch, to_inputs(samples.objective, batch, ports)


def spread(count: int, most: int) -> list[int]:
    """Return up to ``most`` evenly spaced indices below ``count``, ascending.

    >>> spread(10, 3)
    [0, 4, 9]
    """
    if count <= most:
        return list(range(count))
    return sorted({round(place * (count - 1) / max(most - 1, 1)) for place in range(most)})


def to_inputs(objective: Objective, batch: Any, ports: Sequence[PortSpec]) -> Inputs:
    """Return an exported model's inputs: normalised images; of a detector padded, with sizes."""
    if isinstance(batch, ImageBatch):
        return (batch.images,)
    assert isinstance(batch, DetectionBatch)
    assert isinstance(objective, DetectionObjective)
    return fit_canvas(objective.preprocessing.normalise(batch.images), ports[0]), batch.sizes


def fit_canvas(
    images: Float[Tensor, "batch 3 height width"], port: PortSpec
) -> Float[Tensor, "batch 3 padded_height padded_width"]:
    """Zero-pad a detector's images at the bottom and right to a size that an exported model takes.

    Args:
        port: their input.

    Raises:
        DataError: they are larger than the only size that the model takes.
    """
    missing = []
    for length, axis in zip(images.shape[2:], port.axes[2:], strict=True):
        wanted = (
            axis
            if isinstance(axis, int)
            else max(-(-length // port.multiple_of) * port.multiple_of, port.at_least)
        )
        if wanted < length:
            raise DataError(
                f"images of {images.shape[2]}x{images.shape[3]} pixels",
                expected=f"at most {port.axes[2]}x{port.axes[3]}, the size that the model was exported with",
                remedy="Make the images smaller",
            )
        missing.append(wanted - length)
    return F.pad(images, (0, missing[1], 0, missing[0])) if any(missing) else images
