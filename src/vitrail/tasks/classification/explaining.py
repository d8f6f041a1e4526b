"""The pictures of a run's report: errors and correct examples with attention overlays."""

from __future__ import annotations

from collections.abc import Sequence

from vitrail.core.errors import ConfigError
from vitrail.data.sampling import SampleSource
from vitrail.interpret.draw import to_picture
from vitrail.models.checkpoint import LoadedModel
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
    """Return the most confident errors and some correct examples of each class, with attention overlays if
    any.
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


def explain_samples(
    predictor: Predictor,
    source: SampleSource,
    tables: ClassificationTables,
    rows: Sequence[int],
    *,
    names: Sequence[str] = (),
) -> list[ExplainedImage]:
    """Explain samples of an evaluated source for the report.

    Args:
        rows: rows of the tables, from ``most_confident_errors`` and ``examples_of_each_class``.
    """
    images = []
    method, layer = None, None
    for row in rows:
        index = tables.indices[row]
        pixels = source.load(index, None).image
        name = names[index] if names else f"image {index}"
        try:
            explanation = predictor.explain_pixels(pixels, name, layer=layer)
            if method is None and explanation.maps:
                method = explanation.default_method
                layer = None if method == "rollout" else -1  # other layers are not shown and may be large
            overlay = explanation.overlay(method) if explanation.maps else None
        except ConfigError:  # no attention maps, as the report says
            overlay = None
        images.append(
            ExplainedImage(
                picture=to_picture(pixels),
                overlay=overlay,
                name=name,
                true=predictor.class_names[tables.labels[row]],
                # From the tables, not from this forward pass: rounding could break a tie differently.
                predicted=predictor.class_names[tables.predicted[row]],
                confidence=tables.confidence[row],
            )
        )
    return images
