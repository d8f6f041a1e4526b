"""What a model and its export are both shown: images of a data set with their labels, or generated ones."""

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
from vitrail.data.sampling import SampleSource
from vitrail.data.source import ImageSample
from vitrail.engines.export.contract import Inputs
from vitrail.engines.export.package import PortSpec
from vitrail.models.checkpoint import LoadedModel
from vitrail.tasks.classification.objective import ClassificationObjective, ImageBatch
from vitrail.tasks.detection.batch import DetectionBatch
from vitrail.tasks.detection.objective import DetectionObjective
from vitrail.tasks.detection.samples import BoxSample
from vitrail.train.objective import Objective

COARSE = 7  # rows and columns of the noise that a generated image is enlarged from
BATCH_SIZES = (1, 3, 2, 8)  # one after the other, so that a graph that is right for one alone is found out


class Samples(NamedTuple):
    """Images with labels, if there are any."""

    objective: Objective
    """Joins them, and scores."""
    source: SampleSource
    """Those that are compared and scored."""
    title: str
    """What they are, for the user."""
    has_labels: bool
    """Whether scores mean anything."""
    calibration: SampleSource | None = None
    """Those that ranges of whole numbers are taken from."""


class GeneratedImages:
    """Images of smooth noise, which have no labels; a ``SampleSource``.

    Args:
        sizes: height and width of each.
        has_boxes: whether they are samples of a detector.
    """

    def __init__(self, sizes: Sequence[tuple[int, int]], *, has_boxes: bool) -> None:
        self.sizes, self.has_boxes = sizes, has_boxes

    def __len__(self) -> int:
        return len(self.sizes)

    def load(self, index: int, generator: torch.Generator | None) -> ImageSample | BoxSample:
        """Return one image, the same at every call."""
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
    """Return an image of smooth noise with all colours.

    Args:
        size: height and width.
        seed: of the noise.
    """
    noise = torch.rand(1, 3, COARSE, COARSE, generator=torch.Generator().manual_seed(seed))
    smooth = F.interpolate(noise, size=size, mode="bilinear", antialias=True)[0]
    return (255 * smooth).round().to(torch.uint8)


def generate_samples(loaded: LoadedModel, count: int) -> Samples:
    """Return generated images in the model's own size, for models whose data is not at hand."""
    title = f"{count} generated images"
    if loaded.preprocessing.get("task") == "detection":
        of_boxes = BoxPreprocessing.from_tree(loaded.preprocessing)
        height, width = of_boxes.image_size
        # What is left of the size is padding, as where images have several aspects.
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
    """Yield batches of several sizes, each with what it is for an exported model.

    Samples that cannot be read are left out.

    Args:
        samples: whose objective joins them.
        source: where they are read from.
        indices: which of them, in this order.
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
    """Return at most so many places of so many, evenly spaced and in order.

    >>> spread(10, 3)
    [0, 4, 9]
    """
    if count <= most:
        return list(range(count))
    return sorted({round(place * (count - 1) / max(most - 1, 1)) for place in range(most)})


def to_inputs(objective: Objective, batch: Any, ports: Sequence[PortSpec]) -> Inputs:
    """Return the inputs of an exported model: normalised images; of a detector on its canvas, with sizes."""
    if isinstance(batch, ImageBatch):
        return (batch.images,)
    assert isinstance(batch, DetectionBatch)
    assert isinstance(objective, DetectionObjective)
    return fit_canvas(objective.preprocessing.normalise(batch.images), ports[0]), batch.sizes


def fit_canvas(
    images: Float[Tensor, "batch 3 height width"], port: PortSpec
) -> Float[Tensor, "batch 3 padded_height padded_width"]:
    """Add zeros below and to the right of a detector's images, up to a size that an exported model takes.

    Args:
        images: normalised.
        port: the input that they are for.

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
