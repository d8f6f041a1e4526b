"""Whether an engine answers as the model in torch does, by the measure that exports are judged with."""

from __future__ import annotations

from vitrail.checkpoint import LoadedModel
from vitrail.deploy.engines.contract import Engine
from vitrail.deploy.engines.remote import RemoteCell
from vitrail.deploy.engines.workload import is_detector, ports_of
from vitrail.deploy.export.comparison import (
    DEFAULT_LOSS_POINTS,
    HEADLINES,
    check_differences,
    compare,
    lost_points,
    tolerance_of,
)
from vitrail.deploy.export.package import Precision
from vitrail.deploy.export.samples import Samples, spread
from vitrail.errors import CheckpointError

NUM_COMPARED = 64  # images, where scores are no question
NUM_SCORED = 1000  # images that int8 is scored on, which other precisions need not be


def judge(
    loaded: LoadedModel, engine: Engine | RemoteCell, samples: Samples, precision: Precision
) -> str | None:
    """Return why an engine's answers are not those of the model; None where they are.

    Args:
        loaded: the model.
        engine: what is judged.
        samples: the images.
        precision: whose tolerance counts; in int8 with labels, the score counts as well.

    Raises:
        CellError: it fails.
        DataError: no image can be read.
    """
    scores = precision == "int8" and samples.has_labels
    indices = spread(len(samples.source), NUM_SCORED if scores else NUM_COMPARED)
    found, comparison = compare(loaded.model, engine.run, samples, indices, ports_of(loaded))
    try:
        check_differences(found, precision, tolerance_of(found, precision, None), title=samples.title)
    except CheckpointError as error:
        return error.given
    kind = "boxes" if is_detector(loaded) else "images"
    lost = lost_points(comparison, kind)
    if scores and lost > DEFAULT_LOSS_POINTS:
        return f"it loses {lost:.2f} points of {HEADLINES[kind]} on {samples.title}"
    return None
