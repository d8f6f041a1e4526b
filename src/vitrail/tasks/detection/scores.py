"""All scores and tables in a detector's report: COCO's metrics, which faster-coco-eval counts, and errors.

Boxes are corners in pixels of the original images. Small, medium and large refer to the area that the source
gives, in COCO's files that of the object's outline, or else to that of the box.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float64

from vitrail.core.boxes import box_area, xyxy_to_xywh
from vitrail.core.config import Config
from vitrail.core.errors import import_optional
from vitrail.tasks.detection.detections import MAX_BOXES, UNCHOSEN_THRESHOLD, ConfidenceThreshold, ImageBoxes
from vitrail.tasks.detection.errors import (
    ImageErrors,
    ImageOutcome,
    best_threshold,
    confusion_table,
    count_errors,
    image_outcome,
    match_boxes,
    precision_and_recall,
)

RECALLS = tuple(round(step / 100, 2) for step in range(101))
IOU_50, IOU_75 = 0, 5  # positions of these thresholds among the ten from 0.50 to 0.95
ALL_SIZES = 0  # position of the area range that holds every box
NUM_WORST = 100  # images whose boxes are kept, to be drawn


class CocoScores(Config):
    """The twelve numbers of COCO, from 0 to 1; null where the data have no ground truth for one."""

    ap: float | None
    """Average precision, the mean over ten IoU thresholds from 0.50 to 0.95 and over the classes."""
    ap50: float | None
    """The same at an IoU of 0.50."""
    ap75: float | None
    """The same at an IoU of 0.75."""
    ap_small: float | None = None
    """Of boxes below 32 x 32 pixels."""
    ap_medium: float | None = None
    """Of boxes up to 96 x 96 pixels."""
    ap_large: float | None = None
    """Of larger boxes."""
    ar1: float | None = None
    """Average recall with the best box of each class in an image."""
    ar10: float | None = None
    """With the ten best."""
    ar100: float | None = None
    """With the hundred best."""
    ar_small: float | None = None
    """Of boxes below 32 x 32 pixels, with the hundred best."""
    ar_medium: float | None = None
    """Of boxes up to 96 x 96 pixels."""
    ar_large: float | None = None
    """Of larger boxes."""


class ClassDetection(Config):
    """Detection scores of one class."""

    num_boxes: int
    """Ground-truth boxes of this class, excluding crowds."""
    ap: float | None
    """Average precision of this class; null if it has no box, like the fields below."""
    ap50: float | None
    """At an IoU of 0.50."""
    ap75: float | None
    """At an IoU of 0.75."""
    ar100: float | None
    """Average recall, with the hundred best boxes of an image."""
    precision: tuple[float, ...]
    """The curve at an IoU of 0.50: the best precision at each of ``RECALLS`` or beyond; 0 where that recall
    is not reached, and empty if the class has no box."""
    thresholds: tuple[float, ...]
    """The confidence threshold that reaches it; 0 where the recall is not reached."""


class CocoCounts(NamedTuple):
    """The counts of COCO's protocol; -1 where there is no ground truth."""

    precision: Float64[np.ndarray, "ious recalls classes areas bests"]
    """The best precision at each recall or beyond."""
    recall: Float64[np.ndarray, "ious classes areas bests"]
    """The recall of all predictions."""
    thresholds: Float64[np.ndarray, "ious recalls classes areas bests"]
    """The confidence threshold that reaches each recall."""


def import_coco_eval() -> Any:
    """Return the package that counts; ``ConfigError`` if it is not installed."""
    return import_optional("faster_coco_eval", "scores of detectors need", "faster-coco-eval", "detection")


def count_boxes(images: Sequence[ImageBoxes], num_classes: int, *, brief: bool = False) -> CocoCounts:
    """Evaluate predictions; of each image and class, the best ``MAX_BOXES`` count.

    ``brief`` evaluates only all sizes together and the best hundred, which takes less time.

    Paper: Lin et al. 2014, Microsoft COCO: Common Objects in Context; its published code is the definition.

    Raises:
        ConfigError: faster-coco-eval is not installed.
    """
    library = import_coco_eval()
    shared = {
        "images": [{"id": number} for number in range(1, len(images) + 1)],
        "categories": [{"id": label} for label in range(num_classes)],
    }
    true, found = (
        library.COCO(shared | {"annotations": _records(images, of_predictions=are_found)})
        for are_found in (False, True)
    )
    counting = library.COCOeval_faster(true, found, iouType="bbox")
    if brief:
        parameters = counting.params
        parameters.areaRng, parameters.areaRngLbl = parameters.areaRng[:1], parameters.areaRngLbl[:1]
        parameters.maxDets = [MAX_BOXES]
    counting.evaluate()
    counting.accumulate()
    return CocoCounts(*(np.asarray(counting.eval[name]) for name in ("precision", "recall", "scores")))


def scores_of_counts(counts: CocoCounts) -> CocoScores:
    """Average the counts as COCO does; a brief count gives only the first three numbers."""
    precision, recall = counts.precision, counts.recall
    first = {
        "ap": _mean(precision[..., ALL_SIZES, -1]),
        "ap50": _mean(precision[IOU_50, ..., ALL_SIZES, -1]),
        "ap75": _mean(precision[IOU_75, ..., ALL_SIZES, -1]),
    }
    rest: dict[str, float | None] = {}
    if precision.shape[-1] > 1:
        rest = {f"ar{count}": _mean(recall[..., ALL_SIZES, best]) for best, count in enumerate((1, 10, 100))}
        for size, name in enumerate(("small", "medium", "large"), start=1):  # positions of the area ranges
            rest |= {
                f"ap_{name}": _mean(precision[..., size, -1]),
                f"ar_{name}": _mean(recall[..., size, -1]),
            }
    return CocoScores(**first, **rest)


def classes_of_counts(counts: CocoCounts, images: Sequence[ImageBoxes]) -> tuple[ClassDetection, ...]:
    """Return the scores and the curve of each class."""
    num_classes = counts.recall.shape[1]
    num_boxes = np.zeros(num_classes, dtype=np.int64)
    for image in images:
        num_boxes += np.bincount(image.labels[~image.is_crowd].numpy(), minlength=num_classes)
    rows = []
    for label, count in enumerate(num_boxes.tolist()):
        precision = counts.precision[..., label, ALL_SIZES, -1]
        rows.append(
            ClassDetection(
                num_boxes=count,
                ap=_mean(precision),
                ap50=_mean(precision[IOU_50]),
                ap75=_mean(precision[IOU_75]),
                ar100=_mean(counts.recall[:, label, ALL_SIZES, -1]),
                precision=_rounded(precision[IOU_50]) if count else (),
                thresholds=_rounded(counts.thresholds[IOU_50, :, label, ALL_SIZES, -1]) if count else (),
            )
        )
    return tuple(rows)


def _records(images: Sequence[ImageBoxes], *, of_predictions: bool) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = []
    for number, image in enumerate(images, start=1):
        boxes, labels = image.boxes_xyxy.double(), image.labels
        if of_predictions:
            boxes, labels = image.found_xyxy.double(), image.found_labels
        columns = {
            "category_id": labels,
            "bbox": xyxy_to_xywh(boxes),
            "area": box_area(boxes),
            "iscrowd": torch.zeros(len(boxes)) if of_predictions else image.is_crowd.int(),
            "score": image.found_scores.double() if of_predictions else torch.ones(len(boxes)),
        }
        if image.areas is not None and not of_predictions:
            columns["area"] = torch.where(image.areas > 0, image.areas, columns["area"])
        for row in zip(*(column.tolist() for column in columns.values()), strict=True):
            record = {"id": len(records) + 1, "image_id": number}
            records.append(record | dict(zip(columns, row, strict=True)))
    return records


def _mean(values: np.ndarray) -> float | None:
    measured = values[values > -1]
    return float(measured.mean()) if measured.size else None


def _rounded(values: np.ndarray) -> tuple[float, ...]:
    return tuple(round(value, 4) for value in values.tolist())


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
    images: Sequence[ImageBoxes], num_classes: int, threshold: ConfidenceThreshold = UNCHOSEN_THRESHOLD
) -> DetectionTables:
    """Compute the tables behind the headline scores, with ``threshold`` for errors of single boxes."""
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


def choose_threshold(images: Sequence[ImageBoxes]) -> ConfidenceThreshold:
    """Choose the confidence threshold of the best F1; the default if nothing decides.

    The images must not be those that are scored with it.
    """
    value = best_threshold([match_boxes(image) for image in images])
    if value is None:
        return UNCHOSEN_THRESHOLD
    return ConfidenceThreshold(value, "the best F1 of the validation images")


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
