"""Classifiers on ImageNet-ReaL: the images that have labels there, and McNemar's test."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from jaxtyping import Bool

from vitrail.studies.yardsticks.images import ImageYardstick
from vitrail.tasks.classification.opening import open_to_score
from vitrail.tasks.classification.published_scores import real_answers
from vitrail.tasks.registry import open_run
from vitrail.train.evaluate import Report


class ReassessedYardstick(ImageYardstick):
    """A yardstick of ``images``; its methods are those of ``Yardstick``."""

    score = "real_accuracy"

    def read(self, folder: Path) -> Bool[np.ndarray, " images"]:
        """Return of each image with labels whether one of them was given."""
        settings = open_run(folder).experiment.data
        dataset = open_to_score(settings.source, settings=settings)
        return np.array(real_answers(Report.load(folder / "report.json"), dataset, "test"))
