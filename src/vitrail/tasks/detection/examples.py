"""Select example images of an evaluation: the best and the typical ones; the worst are in the tables."""

from __future__ import annotations

import statistics

from vitrail.tasks.detection.errors import ImageErrors
from vitrail.tasks.detection.scores import DetectionTables


def typical_images(tables: DetectionTables, count: int) -> list[int]:
    """Return the indices of images whose share of errors is nearest to the median.

    Images without ground truth and predictions are left out.
    """
    known = [entry for entry in tables.images if _num_boxes(entry)]
    if not known:
        return []
    median = statistics.median(map(_share_wrong, known))
    ranked = sorted(known, key=lambda entry: (abs(_share_wrong(entry) - median), entry.index))
    return [entry.index for entry in ranked[:count]]


def best_images(tables: DetectionTables, count: int) -> list[int]:
    """Return the indices of images without an error, those with the most boxes first."""
    right = [entry for entry in tables.images if entry.correct and not entry.num_errors]
    ranked = sorted(right, key=lambda entry: (-entry.correct, entry.index))
    return [entry.index for entry in ranked[:count]]


def _num_boxes(entry: ImageErrors) -> int:
    return entry.correct + entry.num_errors


def _share_wrong(entry: ImageErrors) -> float:
    return entry.num_errors / _num_boxes(entry)
