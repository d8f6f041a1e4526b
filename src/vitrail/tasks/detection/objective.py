"""Detection as set prediction, scored by COCO's protocol."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, cast

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from vitrail.core.boxes import clip_boxes
from vitrail.data.box_preprocessing import BoxPreprocessing
from vitrail.models.contract import DetectionModel, DetectionOutput, Scoring
from vitrail.tasks.detection.detections import (
    UNCHOSEN_THRESHOLD,
    ConfidenceThreshold,
    ImageBoxes,
    select_boxes,
)
from vitrail.tasks.detection.losses import DetectionLoss
from vitrail.tasks.detection.samples import BoxSample, DetectionBatch, join_samples
from vitrail.tasks.detection.scores import choose_threshold, coco_scores, detection_tables, headline_scores
from vitrail.tasks.detection.settings import DetectionSettings
from vitrail.train.objective import Evaluator, Loss


class DetectionObjective:
    """Batch images and their boxes, compute the loss, and score a detector.

    Args:
        num_classes: number of classes, excluding "no object".
        preprocessing: turns uint8 images into the model's input, and boxes back into pixels.
        settings: the weights of the loss.
        scoring: how the model's logits become scores, as its config says.
        threshold: confidence threshold for errors of single boxes in reports.
    """

    best_by: tuple[str, Literal["max", "min"]] = ("ap", "max")
    unit = "boxes"
    headline = "ap"

    def __init__(
        self,
        num_classes: int,
        preprocessing: BoxPreprocessing,
        settings: DetectionSettings | None = None,
        *,
        scoring: Scoring,
        threshold: ConfidenceThreshold = UNCHOSEN_THRESHOLD,
    ) -> None:
        self.num_classes, self.preprocessing, self.scoring = num_classes, preprocessing, scoring
        self.threshold = threshold
        self.settings = DetectionSettings() if settings is None else settings
        self._criterion = DetectionLoss(num_classes, scoring, self.settings)

    def collate(self, samples: Sequence[Any], generator: torch.Generator | None) -> DetectionBatch:
        """Batch images and boxes; the source has augmented them.

        Raises:
            DataError: a label is not among the classes.
        """
        return join_samples(samples, self.num_classes)

    def loss(self, model: nn.Module, batch: DetectionBatch) -> Loss:
        """Match predictions with the ground truth, and sum their losses over the boxes, in float32.

        A batch without any box counts none, but is a sum as if there were one: it teaches that there is
        nothing. Parts are the unweighted ``class``, ``l1`` and ``giou`` of the final output, and
        ``auxiliary``, the weighted loss of all auxiliary outputs.

        Raises:
            ConfigError: the model is for another number of classes, or its predictions are infinite or NaN.
        """
        return self._criterion(self.predict(model, batch, with_targets=True), batch.targets)

    def predict(
        self, model: nn.Module, batch: DetectionBatch, *, with_targets: bool = False
    ) -> DetectionOutput:
        """Run the model on normalised images, with targets for models that learn from them (denoising)."""
        sizes = batch.sizes if batch.is_padded else None
        targets = batch.targets if with_targets else None
        return cast(DetectionModel, model)(self.preprocessing.normalise(batch.images), sizes, targets)

    def unlabelled(self, image: UInt8[Tensor, "3 height width"], index: int) -> BoxSample:
        none = torch.zeros(0, dtype=torch.int64)
        height, width = image.shape[1:]
        return BoxSample(image, torch.zeros(0, 4), none, index, (height, width), none.bool(), none.double())

    def inputs(self, batch: DetectionBatch) -> tuple[Tensor, Tensor]:
        return self.preprocessing.normalise(batch.images), batch.sizes

    def evaluator(self) -> DetectionEvaluator:
        return DetectionEvaluator(self)

    def settled(self, validated: Evaluator) -> DetectionObjective:
        """Return an objective with the confidence threshold that maximises F1 on validation images."""
        assert isinstance(validated, DetectionEvaluator)
        return DetectionObjective(
            self.num_classes,
            self.preprocessing,
            self.settings,
            scoring=self.scoring,
            threshold=choose_threshold(validated.images_in_order()),
        )


NUM_FIELDS = {"boxes_xyxy": "num_true", "labels": "num_true", "is_crowd": "num_true", "areas": "num_true"} | {
    "found_xyxy": "num_found",
    "found_labels": "num_found",
    "found_scores": "num_found",
}
"""The tensors of an image in an evaluator's state, and the count of their rows."""
PIXEL_DECIMALS = 2  # as in COCO's files; undoes the float32 rounding of normalised boxes


class DetectionEvaluator:
    """Collect ground truth and predictions of every image, in pixels of the original image.

    Predictions are clipped to the image, as in ``detect``.
    """

    def __init__(self, objective: DetectionObjective) -> None:
        self._objective = objective
        self._images: dict[int, ImageBoxes] = {}

    def update(self, model: nn.Module, batch: DetectionBatch) -> None:
        self.add(batch, self._objective.predict(model, batch))

    def add(self, batch: DetectionBatch, output: DetectionOutput) -> None:
        """Collect what a model has predicted for a batch."""
        found = select_boxes(output, self._objective.scoring)
        for sample, selected in zip(batch.samples, found, strict=True):
            # Copies, as views of a tensor would keep the output of all queries.
            scores, labels, boxes = (part.detach().cpu().clone() for part in selected[:3])
            image = ImageBoxes(
                index=sample.index,
                boxes_xyxy=self._in_pixels(sample.boxes, sample.original_size),
                labels=sample.labels,
                is_crowd=sample.is_crowd,
                found_xyxy=clip_boxes(self._in_pixels(boxes, sample.original_size), sample.original_size),
                found_labels=labels,
                found_scores=scores,
                areas=sample.areas,
            )
            self._images.setdefault(sample.index, image)

    def state(self) -> dict[str, Tensor]:
        """Return the collected boxes, images in the order of their source and each only once.

        Scores are therefore the same for every batch size and number of processes.
        """
        images = self.images_in_order()
        numbers = {
            "indices": [image.index for image in images],
            "num_true": [len(image.labels) for image in images],
            "num_found": [len(image.found_labels) for image in images],
        }
        state = {name: torch.tensor(each, dtype=torch.int64) for name, each in numbers.items()}
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
        images = self.images_in_order()
        if not images:
            return {"ap": 0.0, "ap50": 0.0, "count": 0}
        scores = coco_scores(images, self._objective.num_classes, brief=True)
        return {"ap": scores.ap or 0.0, "ap50": scores.ap50 or 0.0, "count": len(images)}

    def report(self) -> tuple[dict[str, float], dict[str, Any]]:
        """Return every headline score, and the tables behind them as plain JSON values."""
        objective = self._objective
        tables = detection_tables(self.images_in_order(), objective.num_classes, objective.threshold)
        return headline_scores(tables), tables.model_dump(mode="json")

    def images_in_order(self) -> list[ImageBoxes]:
        return [self._images[index] for index in sorted(self._images)]

    def _in_pixels(self, boxes_cxcywh: Float[Tensor, "n 4"], size: tuple[int, int]) -> Float[Tensor, "n 4"]:
        corners = self._objective.preprocessing.to_image(boxes_cxcywh.double().cpu(), size)
        return corners.round(decimals=PIXEL_DECIMALS)
