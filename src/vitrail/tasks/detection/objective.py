"""Detection as set prediction, scored by COCO's protocol."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, cast

import torch
from torch import nn

from vitrail.data.box_preprocessing import BoxPreprocessing
from vitrail.models.contract import DetectionModel, DetectionOutput
from vitrail.tasks.detection.batch import DetectionBatch, join_samples
from vitrail.tasks.detection.errors import UNCHOSEN, LeastScore
from vitrail.tasks.detection.evaluator import DetectionEvaluator
from vitrail.tasks.detection.losses import DetectionLoss
from vitrail.tasks.detection.matching import Scoring
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

    def __init__(
        self,
        num_classes: int,
        preprocessing: BoxPreprocessing,
        settings: DetectionSettings | None = None,
        *,
        scoring: Scoring,
        threshold: LeastScore = UNCHOSEN,
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

    def evaluator(self) -> DetectionEvaluator:
        return DetectionEvaluator(
            self.num_classes, self.scoring, self.preprocessing, self.predict, self.threshold
        )

    def settled(self, validated: Evaluator) -> DetectionObjective:
        """Return an objective with the confidence threshold that maximises F1 on validation images."""
        assert isinstance(validated, DetectionEvaluator)
        return DetectionObjective(
            self.num_classes,
            self.preprocessing,
            self.settings,
            scoring=self.scoring,
            threshold=validated.choose_threshold(),
        )
