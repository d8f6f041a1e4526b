"""Which boxes a detector found, missed, confused or made up, at an IoU of 0.5 and a confidence threshold.

Boxes are matched as in COCO: the best first, each with the free ground-truth box of its class that it
overlaps most. The rest is then matched across classes, which separates wrong classes from wrong locations.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vitrail.core.boxes import box_iou, covered_share
from vitrail.core.config import Config
from vitrail.tasks.detection.detections import ImageBoxes

LEAST_IOU = 0.5
NOTHING = -1


class ImageErrors(Config):
    """Error counts of one image above the confidence threshold."""

    index: int
    """Index of the image in its source."""
    correct: int
    """Boxes found with their class."""
    missed: int
    """Ground-truth boxes that were not found."""
    confused: int
    """Boxes found with another class."""
    spurious: int
    """Boxes found without a ground-truth box, duplicates among them."""

    @property
    def num_errors(self) -> int:
        return self.missed + self.confused + self.spurious


class TrueBox(Config):
    """A ground-truth box."""

    label: int
    box: tuple[float, float, float, float]
    """Left, top, right and bottom in pixels of the original image."""
    outcome: Literal["correct", "confused", "missed", "crowd"]
    """What became of it; a crowd is a group of objects, which need not be found."""


class FoundBox(Config):
    """A predicted box."""

    label: int
    score: float
    box: tuple[float, float, float, float]
    """Left, top, right and bottom in pixels of the original image."""
    outcome: Literal["correct", "confused", "spurious", "crowd"]
    """What it is; one in a crowd is neither right nor wrong."""
    match: int | None
    """Index of the ground-truth box that it finds, or confuses; None if there is none."""


class ImageOutcome(Config):
    """The outcome of every box of an image: all that is needed to draw it."""

    index: int
    """Index of the image in its source."""
    true: tuple[TrueBox, ...]
    """Ground-truth boxes."""
    found: tuple[FoundBox, ...]
    """Predictions above the confidence threshold, the best first."""


class MatchedImage(NamedTuple):
    """Predictions of an image, the best first, with their ground-truth matches."""

    image: ImageBoxes
    """The image, with predictions ordered by score."""
    matches: Int[np.ndarray, " found"]
    """Index of the matched box of the same class, or ``NOTHING``."""
    in_crowd: Bool[np.ndarray, " found"]
    """Whether an unmatched prediction lies in a crowd of its class."""


def match_boxes(image: ImageBoxes) -> MatchedImage:
    """Match the predictions of an image with the ground-truth boxes of the same class.

    A better prediction chooses first, so the matches above any threshold are the first of these.
    """
    image = image.pick(image.found_scores.argsort(descending=True, stable=True))
    is_same = (image.found_labels[:, None] == image.labels).numpy()
    is_crowd = image.is_crowd.numpy()
    found, true = image.found_xyxy.double(), image.boxes_xyxy.double()
    overlaps = np.where(is_same & ~is_crowd, box_iou(found, true).numpy(), 0.0)
    in_crowd = ((covered_share(found, true).numpy() >= LEAST_IOU) & is_same & is_crowd).any(axis=1)
    matches = _choose(overlaps)
    return MatchedImage(image, matches, in_crowd & (matches == NOTHING))


def best_threshold(images: Sequence[MatchedImage]) -> float | None:
    """Return the threshold of the best F1 over all classes together; None if nothing decides."""
    num_true, scores, is_correct = _counted(images)
    if not is_correct.any():
        return None
    order = np.argsort(-scores, kind="stable")
    scores, correct = scores[order], is_correct[order].cumsum()
    is_last = np.append(scores[1:] != scores[:-1], True)  # boxes of one score come together
    num_found = np.arange(1, len(scores) + 1)
    f1 = np.where(is_last, 2 * correct / (num_found + num_true), -1.0)
    return float(scores[int(f1.argmax())])


def precision_and_recall(images: Sequence[MatchedImage], threshold: float) -> tuple[float, float]:
    """Return precision and recall at a confidence threshold."""
    num_true, scores, is_correct = _counted(images)
    num_found, num_correct = int((scores >= threshold).sum()), int(is_correct[scores >= threshold].sum())
    return num_correct / num_found if num_found else 0.0, num_correct / num_true if num_true else 0.0


def image_outcome(matched: MatchedImage, threshold: float) -> ImageOutcome:
    """Classify every prediction above a threshold, and every ground-truth box of an image."""
    image, rows = matched.image, slice(int((matched.image.found_scores >= threshold).sum()))
    matches, in_crowd = matched.matches[rows], matched.in_crowd[rows]
    # The rest is matched across classes.
    is_free = ~image.is_crowd.numpy()
    is_free[matches[matches != NOTHING]] = False
    overlaps = box_iou(image.found_xyxy[rows].double(), image.boxes_xyxy.double()).numpy()
    is_left = (matches == NOTHING) & ~in_crowd
    confusions = _choose(np.where(is_left[:, None] & is_free, overlaps, 0.0))
    became = np.where(image.is_crowd.numpy(), "crowd", "missed").astype(object)
    became[matches[matches != NOTHING]] = "correct"
    became[confusions[confusions != NOTHING]] = "confused"
    is_what = np.select(
        [matches != NOTHING, confusions != NOTHING, in_crowd], ["correct", "confused", "crowd"], "spurious"
    )
    partners = np.maximum(matches, confusions)  # at most one of them is not NOTHING
    true = zip(image.labels.tolist(), _corners(image.boxes_xyxy), became.tolist(), strict=True)
    scores = [round(score, 4) for score in image.found_scores[rows].tolist()]
    labels, boxes = image.found_labels[rows].tolist(), _corners(image.found_xyxy[rows])
    partner_of = [None if partner == NOTHING else partner for partner in partners.tolist()]
    found = zip(labels, scores, boxes, is_what.tolist(), partner_of, strict=True)
    return ImageOutcome(
        index=image.index,
        true=tuple(TrueBox(**dict(zip(TrueBox.model_fields, row, strict=True))) for row in true),
        found=tuple(FoundBox(**dict(zip(FoundBox.model_fields, row, strict=True))) for row in found),
    )


def count_errors(outcome: ImageOutcome) -> ImageErrors:
    """Count the errors in an image."""
    became = [box.outcome for box in outcome.true]
    is_what = [box.outcome for box in outcome.found]
    return ImageErrors(
        index=outcome.index,
        correct=became.count("correct"),
        missed=became.count("missed"),
        confused=became.count("confused"),
        spurious=is_what.count("spurious"),
    )


def confusion_table(outcomes: Sequence[ImageOutcome], num_classes: int) -> tuple[tuple[int, ...], ...]:
    """Count boxes by true class (row) and predicted class (column); the last ones are for no box."""
    table = np.zeros((num_classes + 1, num_classes + 1), dtype=np.int64)
    for outcome in outcomes:
        for found in outcome.found:
            if found.outcome != "crowd":
                row = num_classes if found.match is None else outcome.true[found.match].label
                table[row, found.label] += 1
        for true in outcome.true:
            table[true.label, num_classes] += true.outcome == "missed"
    return tuple(map(tuple, table.tolist()))


def _choose(overlaps: Float[np.ndarray, "found true"]) -> Int[np.ndarray, " found"]:
    """Let each row in turn choose its largest free column, from ``LEAST_IOU`` on."""
    chosen = np.full(len(overlaps), NOTHING)
    free = overlaps.copy()
    for row in np.flatnonzero((overlaps >= LEAST_IOU).any(axis=1)):
        column = int(free[row].argmax())
        if free[row, column] >= LEAST_IOU:
            chosen[row] = column
            free[:, column] = 0.0
    return chosen


def _corners(boxes_xyxy: Float[Tensor, "n 4"]) -> list[tuple[float, float, float, float]]:
    rounded = ([round(edge, 2) for edge in box] for box in boxes_xyxy.tolist())
    return [(left, top, right, bottom) for left, top, right, bottom in rounded]


def _counted(images: Sequence[MatchedImage]) -> tuple[int, np.ndarray, np.ndarray]:
    """Return the number of boxes, and score and correctness of each prediction, without those of crowds."""
    num_true = sum(int((~matched.image.is_crowd).sum()) for matched in images)
    kept = [~matched.in_crowd for matched in images]
    scores = [each.image.found_scores.numpy()[rows] for each, rows in zip(images, kept, strict=True)]
    is_correct = [(each.matches != NOTHING)[rows] for each, rows in zip(images, kept, strict=True)]
    none = np.zeros(0, dtype=np.float32)
    return num_true, np.concatenate([none, *scores]), np.concatenate([none.astype(bool), *is_correct])
