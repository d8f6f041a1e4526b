"""Collect a detector's predictions on every image of a data set, for its scores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.core.boxes import clip_boxes
from vitrail.data.box_preprocessing import BoxPreprocessing
from vitrail.models.contract import DetectionOutput
from vitrail.tasks.detection.batch import DetectionBatch, boxes_of_rows
from vitrail.tasks.detection.coco_protocol import MAX_BOXES, ImageBoxes
from vitrail.tasks.detection.errors import UNCHOSEN, LeastScore
from vitrail.tasks.detection.matching import Scoring
from vitrail.tasks.detection.outputs import select_boxes

NUM_FIELDS = {"boxes_xyxy": "num_true", "labels": "num_true", "is_crowd": "num_true"} | {
    "found_xyxy": "num_found",
    "found_labels": "num_found",
    "found_scores": "num_found",
}
"""The tensors of an image in an evaluator's state, and the count of their rows."""
PIXEL_DECIMALS = 2  # as in COCO's files; undoes the float32 rounding of normalised boxes


class DetectionEvaluator:
    """Collect ground truth and predictions of every image, in pixels of the original image.

    Predictions are clipped to the image, as in ``detect``.

    Args:
        num_classes: number of classes.
        scoring: how logits become scores.
        preprocessing: maps boxes back to the original image.
        predict: runs a model on a batch.
        threshold: confidence threshold for errors of single boxes.
    """

    def __init__(
        self,
        num_classes: int,
        scoring: Scoring,
        preprocessing: BoxPreprocessing,
        predict: Callable[[nn.Module, DetectionBatch], DetectionOutput],
        threshold: LeastScore = UNCHOSEN,
    ) -> None:
        self._num_classes, self._scoring = num_classes, scoring
        self._preprocessing, self._predict, self._threshold = preprocessing, predict, threshold
        self._images: dict[int, ImageBoxes] = {}

    def update(self, model: nn.Module, batch: DetectionBatch) -> None:
        found = select_boxes(self._predict(model, batch), self._scoring, max_boxes=MAX_BOXES)
        rows = zip(
            batch.indices.tolist(),
            batch.original_sizes.tolist(),
            boxes_of_rows(batch.targets),
            boxes_of_rows(batch.crowds),
            found,
            strict=True,
        )
        for index, (height, width), (labels, boxes), (crowd_labels, crowds), selected in rows:
            is_crowd = torch.arange(len(labels) + len(crowd_labels)) >= len(labels)
            size = (height, width)
            # Copies, as views of a tensor would keep the output of all queries.
            scores, found_labels, found_boxes = (part.detach().cpu().clone() for part in selected[:3])
            image = ImageBoxes(
                index=index,
                boxes_xyxy=self._in_pixels(torch.cat((boxes, crowds)), size),
                labels=torch.cat((labels, crowd_labels)).cpu(),
                is_crowd=is_crowd,
                found_xyxy=clip_boxes(self._in_pixels(found_boxes, size), size),
                found_labels=found_labels,
                found_scores=scores,
            )
            self._images.setdefault(index, image)

    def state(self) -> dict[str, Tensor]:
        """Return the collected boxes, images in the order of their source and each only once.

        Scores are therefore the same for every batch size and number of processes.
        """
        images = self.images_in_order()
        state = {
            "indices": torch.tensor([image.index for image in images], dtype=torch.int64),
            "num_true": torch.tensor([len(image.labels) for image in images], dtype=torch.int64),
            "num_found": torch.tensor([len(image.found_labels) for image in images], dtype=torch.int64),
        }
        for name in NUM_FIELDS:
            columns = [getattr(image, name) for image in images]
            state[name] = torch.cat(columns) if columns else torch.zeros(0)
        return state

    def absorb(self, state: dict[str, Tensor]) -> None:
        """Add the ``state`` of another process."""
        counts = {name: state[name].tolist() for name in ("num_true", "num_found")}
        columns = {name: state[name].split(counts[count]) for name, count in NUM_FIELDS.items()}
        for row, index in enumerate(state["indices"].tolist()):
            parts = {name: column[row] for name, column in columns.items()}
            self._images.setdefault(index, ImageBoxes(index=index, **parts))

    def result(self) -> dict[str, Any]:
        """Return AP and AP50, for every validation of a training run; 0 if the images have no box."""
        from vitrail.tasks.detection.scores import coco_scores

        images = self.images_in_order()
        if not images:
            return {"ap": 0.0, "ap50": 0.0, "count": 0}
        scores = coco_scores(images, self._num_classes, brief=True)
        return {"ap": scores.ap or 0.0, "ap50": scores.ap50 or 0.0, "count": len(images)}

    def report(self) -> tuple[dict[str, float], dict[str, Any]]:
        """Return every headline score, and the tables behind them as plain JSON values."""
        from vitrail.tasks.detection.scores import detection_tables, headline_scores

        tables = detection_tables(self.images_in_order(), self._num_classes, self._threshold)
        return headline_scores(tables), tables.model_dump(mode="json")

    def images_in_order(self) -> list[ImageBoxes]:
        return [self._images[index] for index in sorted(self._images)]

    def choose_threshold(self) -> LeastScore:
        """Choose the confidence threshold on these images, for others."""
        from vitrail.tasks.detection.scores import choose_threshold

        return choose_threshold(self.images_in_order())

    def _in_pixels(self, boxes_cxcywh: Float[Tensor, "n 4"], size: tuple[int, int]) -> Float[Tensor, "n 4"]:
        corners = self._preprocessing.to_image(boxes_cxcywh.double().cpu(), size)
        return corners.round(decimals=PIXEL_DECIMALS)
