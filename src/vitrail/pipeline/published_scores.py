"""The score that papers report on a benchmark, beside all others, and how complete the benchmark is here."""

from __future__ import annotations

from typing import Any

from vitrail.data import ImageSplit, Preprocessing
from vitrail.data.benchmark_reading import read_real_labels
from vitrail.data.benchmarks import benchmark_of
from vitrail.data.benchmarks.contract import METRIC_TEXTS
from vitrail.data.formats.imagenet import validation_number
from vitrail.errors import DataError
from vitrail.evaluate import Report
from vitrail.metrics.classification import ClassificationTables
from vitrail.metrics.reassessed import reassessed_accuracy


def as_published(report: Report, source: str, split: ImageSplit) -> Report:
    """Add the score that papers report on a benchmark, and sign it; other reports stay as they are.

    Args:
        report: of a classifier on one split.
        source: what the user named.
        split: the images that were scored, in the order of the report.

    Raises:
        DataError: the labels of ReaL are missing, or images have no number that they are found by.
    """
    benchmark = benchmark_of(source)
    if benchmark is None:
        return report
    signature = report.signature | {"benchmark": f"{benchmark.name}, {METRIC_TEXTS[benchmark.metric]}"}
    scores = dict(report.scores)
    if benchmark.metric == "mean_per_class_accuracy":
        scores = {benchmark.metric: scores["balanced_accuracy"], **scores}
    if benchmark.metric == "real_accuracy":
        value, count = _real(report, source, split)
        scores = {benchmark.metric: value, **scores}
        signature["real"] = f"{count} of {len(split)} images have labels"
    published = benchmark.counts[2] or benchmark.counts[1]
    if len(split) != published:
        signature["incomplete"] = f"{len(split)} of {published} images"
    return Report(signature=signature, scores=scores, tables=report.tables, class_names=report.class_names)


def as_prepared(preprocessing: Preprocessing, source: str) -> tuple[Preprocessing, str]:
    """Return a model's preprocessing with the resizing of published results, and a word on it.

    Size, mean and deviation stay the model's.
    """
    benchmark = benchmark_of(source)
    if benchmark is None:
        return preprocessing, "as the model's"
    changes: dict[str, Any] = {
        name: getattr(benchmark.preparation, name) for name in ("resize", "crop_fraction", "interpolation")
    }
    said = f"{benchmark.preparation.resize} {benchmark.preparation.crop_fraction:g}, as published"
    return preprocessing.with_changes(changes), said


def _real(report: Report, source: str, split: ImageSplit) -> tuple[float, int]:
    labels = read_real_labels(source)
    tables = ClassificationTables.from_tree(report.tables)
    numbers = [validation_number(split.names[index]) for index in tables.indices]
    unnumbered = [split.names[i] for i, number in zip(tables.indices, numbers, strict=True) if number is None]
    if unnumbered:
        raise DataError(
            f"the image {unnumbered[0]!r} has no number that its labels of ReaL are found by",
            expected="names such as ILSVRC2012_val_00000001.JPEG",
            remedy="Score the images under their published names; on the hub they have lost them",
        )
    of_images = [labels[number - 1] for number in numbers if number is not None]
    return reassessed_accuracy(tables.predicted, of_images)
