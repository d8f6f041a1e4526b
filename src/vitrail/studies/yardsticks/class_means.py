"""Classifiers on benchmarks that papers score by the mean accuracy of the classes: the paired bootstrap."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from vitrail.models.contract import ImageModelConfig, ModelConfig
from vitrail.report.significance import resample
from vitrail.studies.yardsticks.images import ImageYardstick
from vitrail.tasks.classification.scores import ClassificationTables
from vitrail.train.evaluate import Report


class Answers(NamedTuple):
    """What a run said of the test images."""

    labels: Int64[np.ndarray, " images"]
    """The class of each."""
    is_right: Bool[np.ndarray, " images"]
    """Whether it was given."""


class ClassMeanYardstick:
    """A yardstick of ``images``; its methods are those of ``Yardstick``."""

    kind, score = "classification", "balanced_accuracy"
    model: type[ModelConfig] = ImageModelConfig
    least_resamples = ImageYardstick.least_resamples

    def shared_settings(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return nothing: all mixers see the same cells."""
        return {}

    def example(self, config: ImageModelConfig) -> tuple[Tensor, ...]:
        """Return an image of the size that the model was trained for."""
        return ImageYardstick().example(config)

    def read(self, folder: Path) -> Answers:
        """Return the class of each image, and whether it was given."""
        tables = ClassificationTables.from_tree(Report.load(folder / "report.json").tables)
        labels = np.array(tables.labels, dtype=np.int64)
        return Answers(labels, labels == np.array(tables.predicted))

    def resample(
        self, runs: Sequence[Answers], num_resamples: int
    ) -> Float64[np.ndarray, " {num_resamples}"]:
        """Return the means over the classes that were drawn."""
        labels, shares = runs[0].labels, np.mean([run.is_right for run in runs], axis=0)
        return np.array(
            [_mean_of_classes(labels[drawn], shares[drawn]) for drawn in resample(len(labels), num_resamples)]
        )

    def exact_p(self, first: Answers, second: Answers) -> None:
        """Return None: images of small classes count more, which McNemar's test does not know."""


def _mean_of_classes(labels: Int64[np.ndarray, " n"], shares: Float64[np.ndarray, " n"]) -> float:
    counts = np.bincount(labels)
    sums = np.bincount(labels, weights=shares)
    return float((sums[counts > 0] / counts[counts > 0]).mean())
