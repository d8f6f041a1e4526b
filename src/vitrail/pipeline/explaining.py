"""The pictures of a run's report: what the model looked at, where it erred and where it was right."""

from __future__ import annotations

from vitrail.checkpoint import LoadedModel
from vitrail.data import ImageDataset
from vitrail.deploy.predictor import Predictor
from vitrail.errors import ConfigError
from vitrail.evaluate import Report
from vitrail.metrics.classification import (
    ClassificationTables,
    examples_of_each_class,
    most_confident_errors,
)
from vitrail.report.run_report import MAX_PICTURES, ExplainedImage

NUM_ERRORS = 12
MAX_EXAMPLES_PER_CLASS = 2


def report_pictures(
    loaded: LoadedModel, dataset: ImageDataset, report: Report
) -> tuple[list[ExplainedImage], list[ExplainedImage]]:
    """Return the most confident errors and some correct examples of each class, with attention overlays.

    Args:
        loaded: the model that the report is about.
        dataset: its test split was evaluated.
        report: holds the prediction for every image.

    Returns:
        Errors and examples; both empty for a model without attention over patches.
    """
    tables = ClassificationTables.from_tree(report.tables)
    predictor = Predictor(loaded)
    left = MAX_PICTURES - NUM_ERRORS
    count = max(1, min(MAX_EXAMPLES_PER_CLASS, left // len(dataset.class_names)))
    examples = [row for rows in examples_of_each_class(tables, count).values() for row in rows][:left]
    try:
        return (
            [_explain(predictor, dataset, tables, row) for row in most_confident_errors(tables, NUM_ERRORS)],
            [_explain(predictor, dataset, tables, row) for row in examples],
        )
    except ConfigError:  # no attention to show
        return [], []


def _explain(
    predictor: Predictor, dataset: ImageDataset, tables: ClassificationTables, row: int
) -> ExplainedImage:
    index, names = tables.indices[row], dataset.class_names
    name = dataset.test.names[index]
    explanation = predictor.explain_pixels(predictor.preprocessing.read(dataset.test.images[index]), name)
    return ExplainedImage(
        picture=explanation.picture,
        overlay=explanation.overlay(),
        name=name,
        true=names[tables.labels[row]],
        predicted=names[tables.predicted[row]],
        confidence=tables.confidence[row],
    )
