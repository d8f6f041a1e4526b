"""What became of every box of some images of a data set, with the images, for the report of a run."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from vitrail.core.errors import DataError
from vitrail.data.images import read_image
from vitrail.tasks.detection.coco_protocol import ImageBoxes
from vitrail.tasks.detection.dataset import BoxSplit
from vitrail.tasks.detection.errors import ImageOutcome, image_outcome, match_boxes
from vitrail.tasks.detection.predictor import Detector
from vitrail.tasks.detection.report import ComparedImage
from vitrail.tasks.detection.scores import DetectionTables


def compare_boxes(
    detector: Detector, split: BoxSplit, tables: DetectionTables, indices: Sequence[int]
) -> list[ComparedImage]:
    """Return images with the boxes in the data and those found; images that cannot be read are left out.

    Args:
        detector: the model that was evaluated.
        split: the images that were evaluated.
        tables: what the evaluation found; its worst images are not looked through again.
        indices: places in the split, as those of ``tasks.detection.examples`` are.
    """
    known = {outcome.index: outcome for outcome in tables.worst}
    compared = []
    for index in indices:
        name = split.names[index]
        try:
            picture = read_image(split.images[index], name=name)
        except DataError:
            continue
        outcome = known.get(index) or _look(detector, split, index, tables.threshold)
        compared.append(ComparedImage(picture=picture, name=name, outcome=outcome))
    return compared


def _look(detector: Detector, split: BoxSplit, index: int, threshold: float) -> ImageOutcome:
    """Find boxes in an image and match them with those of the data."""
    pixels, size = detector.read(split.images[index], split.names[index])
    found = detector.in_pixels(detector.find([pixels])[0], size, split.names[index])
    image = ImageBoxes(
        index=index,
        boxes_xyxy=torch.tensor(split.boxes[index]),
        labels=torch.tensor(split.labels[index]),
        is_crowd=torch.tensor(split.is_crowd[index]),
        found_xyxy=found.boxes_xyxy,
        found_labels=found.labels,
        found_scores=found.scores,
    )
    return image_outcome(match_boxes(image), threshold)
