"""Checks that an engine's outputs agree with the torch model, within the tolerances of exports."""

from __future__ import annotations

from vitrail.core.errors import CheckpointError
from vitrail.engines.contract import Engine
from vitrail.engines.export.comparison import (
    DEFAULT_LOSS_POINTS,
    check_differences,
    check_loss,
    compare,
    is_scored_whole,
    tolerance_of,
)
from vitrail.engines.export.package import Precision
from vitrail.engines.export.samples import Samples, spread
from vitrail.engines.remote import RemoteCell
from vitrail.engines.workload import is_detector, ports_of
from vitrail.models.checkpoint import LoadedModel

NUM_COMPARED = 64  # images, if scores are not compared
NUM_SCORED = 1000  # images for scoring reduced precisions


def judge(
    loaded: LoadedModel,
    engine: Engine | RemoteCell,
    samples: Samples,
    precision: Precision,
    *,
    is_scored: bool = False,
) -> str | None:
    """Return why an engine's outputs do not agree with the model's; None if they do.

    Args:
        precision: determines the tolerance; with labels, the score counts as well.
        is_scored: whether the score has been compared on all images already, as for an export.

    Raises:
        CellError: it fails.
        DataError: no image can be read.
    """
    scores = is_scored_whole(precision, samples) and not is_scored
    most = NUM_SCORED if scores else NUM_COMPARED
    indices = spread(len(samples.source), most)
    found, comparison = compare(loaded.model, engine.run, samples, indices, ports_of(loaded))
    try:
        check_differences(found, precision, tolerance_of(found, precision, None), title=samples.title)
        if not is_scored:
            kind = "detection" if is_detector(loaded) else "classification"
            check_loss(comparison, kind, precision, DEFAULT_LOSS_POINTS)
    except CheckpointError as error:
        return error.given
    return None
