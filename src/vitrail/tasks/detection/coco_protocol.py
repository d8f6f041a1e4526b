"""COCO's detection metrics; faster-coco-eval does the counting.

Boxes are corners in pixels of the original images. Small, medium and large refer to the area of the bounding
box, while COCO's own files give the area of the object's outline, which is smaller.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor

from vitrail.core.boxes import box_area, xyxy_to_xywh
from vitrail.core.config import Config
from vitrail.core.errors import ConfigError

MAX_BOXES = 100  # per image and class, the best of them; the largest number that COCO counts
RECALLS = tuple(round(step / 100, 2) for step in range(101))
IOU_50, IOU_75 = 0, 5  # positions of these thresholds among the ten from 0.50 to 0.95
ALL_SIZES, SMALL, MEDIUM, LARGE = range(4)  # positions of the area ranges
BEST_1, BEST_10, BEST_100 = range(3)  # positions of the maximum numbers of detections


class ImageBoxes(NamedTuple):
    """Ground truth and predictions of one image."""

    index: int  # type: ignore[assignment]
    """Index of the image in its source."""
    boxes_xyxy: Float[Tensor, "n 4"]
    """Ground truth, in pixels of the original image."""
    labels: Int[Tensor, " n"]
    is_crowd: Bool[Tensor, " n"]
    """Crowds: groups of objects that need not be found, and in which no prediction is wrong."""
    found_xyxy: Float[Tensor, "m 4"]
    """Predictions, in pixels of the original image."""
    found_labels: Int[Tensor, " m"]
    found_scores: Float[Tensor, " m"]


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


def count_boxes(images: Sequence[ImageBoxes], num_classes: int, *, brief: bool = False) -> CocoCounts:
    """Evaluate predictions; of each image and class, the best ``MAX_BOXES`` count.

    ``brief`` evaluates only all sizes together and the best hundred, which takes less time.

    Paper: Lin et al. 2014, Microsoft COCO: Common Objects in Context; its published code is the definition.

    Raises:
        ConfigError: faster-coco-eval is not installed.
    """
    data_set, evaluation = _import_evaluation()
    shared = {
        "images": [{"id": number} for number in range(1, len(images) + 1)],
        "categories": [{"id": label} for label in range(num_classes)],
    }
    true = data_set(shared | {"annotations": _true_records(images)})
    found = data_set(shared | {"annotations": _found_records(images)})
    counting = evaluation(true, found, iouType="bbox")
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
    if precision.shape[-1] == 1:
        return CocoScores(**first)
    return CocoScores(
        **first,
        ap_small=_mean(precision[..., SMALL, BEST_100]),
        ap_medium=_mean(precision[..., MEDIUM, BEST_100]),
        ap_large=_mean(precision[..., LARGE, BEST_100]),
        ar1=_mean(recall[..., ALL_SIZES, BEST_1]),
        ar10=_mean(recall[..., ALL_SIZES, BEST_10]),
        ar100=_mean(recall[..., ALL_SIZES, BEST_100]),
        ar_small=_mean(recall[..., SMALL, BEST_100]),
        ar_medium=_mean(recall[..., MEDIUM, BEST_100]),
        ar_large=_mean(recall[..., LARGE, BEST_100]),
    )


def classes_of_counts(counts: CocoCounts, images: Sequence[ImageBoxes]) -> tuple[ClassDetection, ...]:
    """Return the scores and the curve of each class."""
    num_classes = counts.recall.shape[1]
    num_boxes = np.zeros(num_classes, dtype=np.int64)
    for image in images:
        num_boxes += np.bincount(image.labels[~image.is_crowd].numpy(), minlength=num_classes)
    rows = []
    for label, count in enumerate(num_boxes.tolist()):
        precision = counts.precision[..., label, ALL_SIZES, -1]
        thresholds = counts.thresholds[IOU_50, :, label, ALL_SIZES, -1]
        rows.append(
            ClassDetection(
                num_boxes=count,
                ap=_mean(precision),
                ap50=_mean(precision[IOU_50]),
                ap75=_mean(precision[IOU_75]),
                ar100=_mean(counts.recall[:, label, ALL_SIZES, -1]),
                precision=_rounded(precision[IOU_50]) if count else (),
                thresholds=_rounded(thresholds) if count else (),
            )
        )
    return tuple(rows)


def _true_records(images: Sequence[ImageBoxes]) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = []
    for number, image in enumerate(images, start=1):
        boxes = image.boxes_xyxy.double()
        columns = (xyxy_to_xywh(boxes), box_area(boxes), image.labels, image.is_crowd)
        for box, area, label, is_crowd in zip(*(column.tolist() for column in columns), strict=True):
            record = _record(len(records) + 1, number, label, box, area)
            records.append(record | {"iscrowd": int(is_crowd)})
    return records


def _found_records(images: Sequence[ImageBoxes]) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = []
    for number, image in enumerate(images, start=1):
        boxes = image.found_xyxy.double()
        columns = (xyxy_to_xywh(boxes), box_area(boxes), image.found_labels, image.found_scores.double())
        for box, area, label, score in zip(*(column.tolist() for column in columns), strict=True):
            record = _record(len(records) + 1, number, label, box, area)
            records.append(record | {"iscrowd": 0, "score": score})
    return records


def _record(number: int, image: int, label: int, box: list[float], area: float) -> dict[str, Any]:
    return {"id": number, "image_id": image, "category_id": label, "bbox": box, "area": area}


def _mean(values: np.ndarray) -> float | None:
    measured = values[values > -1]
    return float(measured.mean()) if measured.size else None


def _rounded(values: np.ndarray) -> tuple[float, ...]:
    return tuple(round(value, 4) for value in values.tolist())


def _import_evaluation() -> tuple[Any, Any]:
    try:
        from faster_coco_eval import COCO, COCOeval_faster
    except ImportError:
        raise ConfigError(
            "scores of detectors need the package faster-coco-eval, which is not installed",
            expected="faster-coco-eval beside vitrail",
            remedy="Install it with: pip install 'vitrail[detection]'",
        ) from None
    return COCO, COCOeval_faster
