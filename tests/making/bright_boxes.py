"""Detectors that need no training, and images for them: one predicts the box around what is bright."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from making.small_models import DETR
from vitrail.data.box_preprocessing import BoxPreprocessing
from vitrail.models import build, model_settings
from vitrail.models.checkpoint import LoadedModel
from vitrail.models.contract import BoxTargets, DetectionModelConfig, DetectionOutput

NAMES = ["red", "green", "blue"]
NUM_QUERIES = 4


class BrightBoxesConfig(DetectionModelConfig):
    """Settings of the detector."""

    family: ClassVar[str] = "bright_boxes"
    paper: ClassVar[str] = "none"
    position_policy: ClassVar[str] = "none"
    size_policy: ClassVar[str] = "any size"
    scoring: ClassVar[Literal["softmax", "sigmoid"]] = "sigmoid"

    def build(self) -> nn.Module:
        """Return the detector."""
        return BrightBoxes(self)


class Seen(list[tuple[int, ...]]):
    """The shapes of batches, which copies of the model share: an engine runs a copy."""

    def __deepcopy__(self, memo: object) -> Seen:
        return self


class BrightBoxes(nn.Module):
    """Answer, of each colour, with the box around the pixels that have it in full; others have low scores."""

    def __init__(self, config: BrightBoxesConfig) -> None:
        super().__init__()
        self.config = config
        self.batches = Seen()

    def forward(
        self, images: Tensor, sizes: Tensor | None = None, targets: BoxTargets | None = None
    ) -> DetectionOutput:
        """Return a query for each colour and one that is never sure of anything."""
        self.batches.append(tuple(images.shape))
        boxes = torch.full((len(images), NUM_QUERIES, 4), 0.5)
        logits = torch.full((len(images), NUM_QUERIES, len(NAMES)), -4.0)
        for row, image in enumerate(images):
            height, width = image.shape[1:] if sizes is None else sizes[row].tolist()
            for colour, channel in enumerate(image[:, :height, :width]):
                rows, columns = (channel > 0.5).nonzero(as_tuple=True)
                if not len(rows):
                    continue
                top, bottom = rows.min() / height, (rows.max() + 1) / height
                left, right = columns.min() / width, (columns.max() + 1) / width
                boxes[row, colour] = torch.stack(
                    [(left + right) / 2, (top + bottom) / 2, right - left, bottom - top]
                )
                logits[row, colour, colour] = 3.0 - colour
        return DetectionOutput(logits, boxes)


def bright_detector(
    image_size: tuple[int, int] = (64, 64),
    resize: Literal["fit", "squash", "shortest"] = "fit",
    **about: object,
) -> LoadedModel:
    """Return the detector as it would be loaded."""
    preprocessing = BoxPreprocessing(image_size=image_size, resize=resize)
    config = BrightBoxesConfig(num_classes=len(NAMES), num_queries=NUM_QUERIES)
    return LoadedModel(
        BrightBoxes(config), {"name": "bright"}, preprocessing.model_dump(mode="json"), NAMES, dict(about)
    )


def small_detr() -> LoadedModel:
    """Return a DETR that was not trained."""
    torch.manual_seed(1)
    model = build("detr_r50", **DETR).eval()
    preprocessing = BoxPreprocessing(image_size=(48, 64)).model_dump(mode="json")
    names = [f"class {label}" for label in range(DETR["num_classes"])]
    return LoadedModel(model, model_settings("detr_r50", **DETR), preprocessing, names, {})


def picture_with(size: tuple[int, int], boxes: dict[int, tuple[int, int, int, int]]) -> Image.Image:
    """Paint boxes, by channel, on black.

    Args:
        size: height and width.
        boxes: left, top, right and bottom by channel.
    """
    pixels = np.zeros((*size, 3), np.uint8)
    for channel, (left, top, right, bottom) in boxes.items():
        pixels[top:bottom, left:right, channel] = 255
    return Image.fromarray(pixels)
