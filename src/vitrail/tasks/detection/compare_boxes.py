"""Images of a data set with the outcome of every box, for the report of a run."""

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
    """Return images with ground truth and predictions; unreadable images are left out.

    Args:
        split: the images that were evaluated.
        tables: of the evaluation; its worst images are not predicted again.
        indices: in the split, as those of ``tasks.detection.examples`` are.
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
