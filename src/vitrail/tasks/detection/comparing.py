"""Compare detectors: COCO's average precision, and the paired bootstrap over images."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float64
from safetensors import SafetensorError
from safetensors.torch import load, save

from vitrail.core.durable import atomic_write
from vitrail.engines.loading import load_any
from vitrail.report.significance import resample
from vitrail.tasks.contract import ComparisonMetric
from vitrail.tasks.detection.detections import ImageBoxes
from vitrail.tasks.detection.objective import DetectionEvaluator
from vitrail.tasks.detection.scores import coco_scores
from vitrail.tasks.evaluating import open_scoring
from vitrail.tasks.registry import open_run
from vitrail.train.evaluate import run_evaluator
from vitrail.train.machine import inspect_machine

FOUND_FILE = "found.safetensors"  # too large for a report: every prediction on the test images


class AveragePrecision(ComparisonMetric):
    """COCO's average precision; being no mean over images, it has no exact test."""

    score = "ap"
    least_resamples = 200  # each is a run of COCO's protocol

    def read(self, folder: Path) -> tuple[list[ImageBoxes], int]:
        """Return the model's predictions on the test images, and the number of classes.

        The predictions are kept beside the report.
        """
        loaded = load_any(folder)
        source = open_run(folder).experiment.data.source
        (scoring,) = open_scoring(folder, loaded, source, "test")
        evaluator: Any = scoring.objective.evaluator()
        assert isinstance(evaluator, DetectionEvaluator)
        try:
            evaluator.absorb(load((folder / FOUND_FILE).read_bytes()))
        except (OSError, SafetensorError, KeyError):  # not there yet, or damaged
            model = loaded.model.to(inspect_machine().device)
            run_evaluator(evaluator, scoring.objective, model, scoring.source, batch_size=scoring.batch_size)
            atomic_write(folder / FOUND_FILE, save(evaluator.state()))
        return evaluator.images_in_order(), len(loaded.class_names)

    def resample(
        self, runs: Sequence[tuple[list[ImageBoxes], int]], num_resamples: int
    ) -> Float64[np.ndarray, " {num_resamples}"]:
        """Return the mean average precision; 0 if the drawn images have no box."""
        scores = [
            [
                coco_scores([images[row] for row in drawn], num_classes, brief=True).ap or 0
                for images, num_classes in runs
            ]
            for drawn in resample(len(runs[0][0]), num_resamples)
        ]
        return np.mean(scores, axis=1)


AVERAGE_PRECISION = AveragePrecision()
