"""All scores and tables in a detector's report, computed from its predictions on every image."""

from __future__ import annotations

from collections.abc import Sequence

from vitrail.core.config import Config
from vitrail.tasks.detection.coco_protocol import (
    MAX_BOXES,
    RECALLS,
    ClassDetection,
    CocoScores,
    ImageBoxes,
    classes_of_counts,
    count_boxes,
    scores_of_counts,
)
from vitrail.tasks.detection.errors import (
    UNCHOSEN,
    ImageErrors,
    ImageOutcome,
    LeastScore,
    best_threshold,
    confusion_table,
    count_errors,
    image_outcome,
    match_boxes,
    precision_and_recall,
)

__all__ = [
    "MAX_BOXES",
    "RECALLS",
    "UNCHOSEN",
    "ClassDetection",
    "CocoScores",
    "DetectionTables",
    "ImageBoxes",
    "ImageErrors",
    "ImageOutcome",
    "LeastScore",
    "choose_threshold",
    "coco_scores",
    "detection_tables",
    "headline_scores",
]

NUM_WORST = 100  # images whose boxes are kept, to be drawn


class DetectionTables(Config):
    """Everything behind the headline scores of a detector."""

    scores: CocoScores
    per_class: tuple[ClassDetection, ...]
    """One row per class, in class order."""
    threshold: float
    """Confidence threshold for the fields below, chosen beforehand."""
    threshold_origin: str = "the best F1 of these images"
    """Where it comes from, in a few words; if a report does not say, it was not chosen on other images."""
    precision: float
    """Precision at that threshold; 0 without predictions."""
    recall: float
    """Recall at that threshold; 0 without ground truth."""
    confusion: tuple[tuple[int, ...], ...]
    """Number of boxes by true class (row) and predicted class (column); the last row holds predictions
    without ground truth, the last column missed boxes."""
    images: tuple[ImageErrors, ...]
    """One row per image, in the order of the source."""
    worst: tuple[ImageOutcome, ...]
    """The images with the most errors, the worst first."""


def coco_scores(images: Sequence[ImageBoxes], num_classes: int, *, brief: bool = False) -> CocoScores:
    """Score predictions by COCO's protocol, in which the best ``MAX_BOXES`` of each class count.

    ``brief`` computes AP, AP50 and AP75 alone, which takes less time.

    Raises:
        ConfigError: faster-coco-eval is not installed.

    Example:
        >>> import torch
        >>> box, label = torch.tensor([[2.0, 3.0, 9.0, 8.0]]), torch.tensor([0])
        >>> image = ImageBoxes(0, box, label, label.bool(), box, label, torch.tensor([0.9]))
        >>> round(coco_scores([image], 1).ap, 3)
        1.0
    """
    return scores_of_counts(count_boxes(images, num_classes, brief=brief))


def detection_tables(
    images: Sequence[ImageBoxes], num_classes: int, threshold: LeastScore = UNCHOSEN
) -> DetectionTables:
    """Compute the tables behind the headline scores, with ``threshold`` for errors of single boxes.

    Raises:
        ConfigError: as ``coco_scores``.
    """
    counts = count_boxes(images, num_classes)
    matched = [match_boxes(image) for image in images]
    precision, recall = precision_and_recall(matched, threshold.value)
    outcomes = [image_outcome(image, threshold.value) for image in matched]
    errors = [count_errors(outcome) for outcome in outcomes]
    rows = [row for row, entry in enumerate(errors) if entry.num_errors]
    worst = sorted(rows, key=lambda row: -errors[row].num_errors)[:NUM_WORST]
    return DetectionTables(
        scores=scores_of_counts(counts),
        per_class=classes_of_counts(counts, images),
        threshold=threshold.value,
        threshold_origin=threshold.origin,
        precision=precision,
        recall=recall,
        confusion=confusion_table(outcomes, num_classes),
        images=tuple(errors),
        worst=tuple(outcomes[row] for row in worst),
    )


def choose_threshold(images: Sequence[ImageBoxes]) -> LeastScore:
    """Choose the confidence threshold of the best F1; the default if nothing decides.

    The images must not be those that are scored with it.
    """
    value = best_threshold([match_boxes(image) for image in images])
    return UNCHOSEN if value is None else LeastScore(value, "the best F1 of the validation images")


def headline_scores(tables: DetectionTables) -> dict[str, float]:
    """Return every single number by name, except those without ground truth.

    AP and AP50 are always there, 0 if the data have no box.
    """
    named = {name: value for name, value in tables.scores.model_dump().items() if value is not None}
    found = tables.precision + tables.recall
    at_threshold = {
        "f1": 2 * tables.precision * tables.recall / found if found else 0.0,
        "precision": tables.precision,
        "recall": tables.recall,
        "threshold": tables.threshold,
    }
    return {"ap": 0.0, "ap50": 0.0} | named | at_threshold
