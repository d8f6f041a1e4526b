"""Comparison of classifiers by accuracy, or by a benchmark's published metric."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float64, Int64

from vitrail.report.significance import mcnemar_exact, resample
from vitrail.tasks.classification.benchmarks import benchmark_of
from vitrail.tasks.classification.opening import open_to_score
from vitrail.tasks.classification.published_scores import correct_by_real
from vitrail.tasks.classification.scores import ClassificationTables
from vitrail.tasks.contract import ComparisonMetric
from vitrail.tasks.registry import open_run
from vitrail.train.evaluate import Report


class Accuracy(ComparisonMetric):
    """Accuracy, and McNemar's test of the images on which two models disagree."""

    score = "accuracy"
    least_resamples = 2000

    def read(self, folder: Path) -> Bool[np.ndarray, " images"]:
        tables = ClassificationTables.from_tree(Report.load(folder / "report.json").tables)
        return np.array(tables.labels) == np.array(tables.predicted)

    def resample(
        self, runs: Sequence[Bool[np.ndarray, " images"]], num_resamples: int
    ) -> Float64[np.ndarray, " {num_resamples}"]:
        shares = np.mean(runs, axis=0)
        return np.array([shares[drawn].mean() for drawn in resample(len(shares), num_resamples)])

    def exact_p(self, first: Bool[np.ndarray, " images"], second: Bool[np.ndarray, " images"]) -> float:
        return mcnemar_exact(int((first & ~second).sum()), int((second & ~first).sum()))


class RealAccuracy(Accuracy):
    """Accuracy on the images that have ImageNet-ReaL labels."""

    score = "real_accuracy"

    def read(self, folder: Path) -> Bool[np.ndarray, " images"]:
        settings = open_run(folder).experiment.data
        dataset = open_to_score(settings.source, settings=settings)
        return np.array(correct_by_real(Report.load(folder / "report.json"), dataset, "test"))


Answers = tuple[Int64[np.ndarray, " images"], Bool[np.ndarray, " images"]]
"""The labels of the test images, and which of them a run predicts right."""


class BalancedAccuracy(ComparisonMetric):
    """Mean per-class accuracy.

    McNemar's test does not apply: images of small classes weigh more.
    """

    score = "balanced_accuracy"
    least_resamples = Accuracy.least_resamples

    def read(self, folder: Path) -> Answers:
        tables = ClassificationTables.from_tree(Report.load(folder / "report.json").tables)
        labels = np.array(tables.labels, dtype=np.int64)
        return labels, labels == np.array(tables.predicted)

    def resample(
        self, runs: Sequence[Answers], num_resamples: int
    ) -> Float64[np.ndarray, " {num_resamples}"]:
        labels, shares = runs[0][0], np.mean([is_right for _, is_right in runs], axis=0)
        means = []
        for drawn in resample(len(labels), num_resamples):
            counts = np.bincount(labels[drawn])
            sums = np.bincount(labels[drawn], weights=shares[drawn])
            means.append((sums[counts > 0] / counts[counts > 0]).mean())
        return np.array(means)


ACCURACY = Accuracy()
PUBLISHED = {"mean_per_class_accuracy": BalancedAccuracy(), "real_accuracy": RealAccuracy()}
"""Metrics of benchmarks that are not scored by plain accuracy."""


def comparison_metric(source: str) -> ComparisonMetric:
    """Return the metric that classifiers of a data set are compared by."""
    benchmark = benchmark_of(source)
    return ACCURACY if benchmark is None else PUBLISHED.get(benchmark.metric, ACCURACY)
