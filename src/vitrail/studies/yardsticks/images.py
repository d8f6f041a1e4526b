"""Classifiers: accuracy, and McNemar's test of the images that two of them answer differently."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float64
from torch import Tensor

from vitrail.models.contract import ImageModelConfig, ModelConfig
from vitrail.report.significance import mcnemar_exact, resample
from vitrail.tasks.classification.scores import ClassificationTables
from vitrail.train.evaluate import Report


class ImageYardstick:
    """The yardstick of ``images``; its methods are those of ``Yardstick``."""

    kind, score = "classification", "accuracy"
    model: type[ModelConfig] = ImageModelConfig
    least_resamples = 2000

    def shared_settings(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return nothing: all mixers see the same cells."""
        return {}

    def example(self, config: ImageModelConfig) -> tuple[Tensor, ...]:
        """Return an image of the size that the model was trained for."""
        return (torch.empty(1, config.num_channels, *config.image_size),)

    def read(self, folder: Path) -> Bool[np.ndarray, " images"]:
        """Return of each image whether it was classified correctly."""
        tables = ClassificationTables.from_tree(Report.load(folder / "report.json").tables)
        return np.array(tables.labels) == np.array(tables.predicted)

    def resample(
        self, runs: Sequence[Bool[np.ndarray, " images"]], num_resamples: int
    ) -> Float64[np.ndarray, " {num_resamples}"]:
        """Return the mean accuracies."""
        shares = np.mean(runs, axis=0)
        return np.array([shares[drawn].mean() for drawn in resample(len(shares), num_resamples)])

    def exact_p(self, first: Bool[np.ndarray, " images"], second: Bool[np.ndarray, " images"]) -> float:
        """Return the p of McNemar's exact test."""
        return mcnemar_exact(int((first & ~second).sum()), int((second & ~first).sum()))


YARDSTICK = ImageYardstick()
