"""The pictures of a run's report: what the model looked at, where it erred and where it was right."""

from __future__ import annotations

from collections.abc import Sequence

from vitrail.data.sampling import SampleSource
from vitrail.models.checkpoint import LoadedModel
from vitrail.tasks.classification.explain import explain_samples
from vitrail.tasks.classification.predictor import Predictor
from vitrail.tasks.classification.report import MAX_PICTURES, ExplainedImage
from vitrail.tasks.classification.scores import (
    ClassificationTables,
    examples_of_each_class,
    most_confident_errors,
)
from vitrail.train.evaluate import Report

NUM_ERRORS = 12
MAX_EXAMPLES_PER_CLASS = 2


def report_pictures(
    loaded: LoadedModel, source: SampleSource, names: Sequence[str], report: Report
) -> tuple[list[ExplainedImage], list[ExplainedImage]]:
    """Return the most confident errors and some correct examples of each class, with attention overlays.

    A model without attention maps has pictures without overlays.

    Args:
        loaded: the model that the report is about.
        source: the samples that were evaluated.
        names: what they are called.
        report: holds the prediction for every sample.

    Returns:
        Errors and examples.
    """
    tables = ClassificationTables.from_tree(report.tables)
    predictor = Predictor(loaded)
    left = MAX_PICTURES - NUM_ERRORS
    count = max(1, min(MAX_EXAMPLES_PER_CLASS, left // len(tables.per_class)))
    examples = [row for rows in examples_of_each_class(tables, count).values() for row in rows][:left]
    errors = most_confident_errors(tables, NUM_ERRORS)
    return (
        explain_samples(predictor, source, tables, errors, names=names),
        explain_samples(predictor, source, tables, examples, names=names),
    )
