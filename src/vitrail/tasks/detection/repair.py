"""Repair the boxes of one image where that needs no guess, and drop meaningless ones."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int64

from vitrail.tasks.detection.faults import EMPTY_PX, clip_to, find_faults, find_twins, order_corners


class RepairedBoxes(NamedTuple):
    """The remaining boxes of one image."""

    boxes_xyxy: Float[np.ndarray, "kept 4"]
    """With ordered corners, within the image."""
    kept: Int64[np.ndarray, " kept"]
    """Their original indices."""
    changes: dict[str, list[int]]
    """By kind of change, the affected boxes: ``swapped``, ``clipped``, ``not-finite``, ``empty``, ``outside``
    and ``duplicate``, of which the last four are dropped."""


def repair_boxes(
    boxes_xyxy: Float[np.ndarray, "n 4"],
    labels: Int64[np.ndarray, " n"],
    is_crowd: Bool[np.ndarray, " n"],
    size: tuple[int, int],
) -> RepairedBoxes:
    """Swap inverted corners, clip to the image, and drop what has no area or repeats another of its class.

    Args:
        boxes_xyxy: as annotated, in pixels of the image.
        labels: class of each box; boxes of two classes never repeat each other.
        is_crowd: boxes of groups are never duplicates.
        size: height and width of the image.

    >>> boxes = np.array([[5, 1, 2, 3], [4, 4, 4, 9]], dtype=np.float32)
    >>> labels, is_crowd = np.zeros(2, dtype=np.int64), np.zeros(2, dtype=bool)
    >>> repair_boxes(boxes, labels, is_crowd, (8, 8)).changes
    {'swapped': [0], 'empty': [1]}
    """
    sizes = np.broadcast_to(np.array(size, dtype=np.int64), (len(boxes_xyxy), 2))
    faults = find_faults(boxes_xyxy, sizes)
    ordered = order_corners(np.where(faults.not_finite[:, None], 0, boxes_xyxy).astype(np.float32))
    mended = clip_to(ordered, sizes)
    remains = ~faults.not_finite & ~faults.empty & ((mended[:, 2:] - mended[:, :2]) >= EMPTY_PX).all(axis=1)
    is_outside = ~remains & ~faults.not_finite & ~faults.empty
    is_duplicate = np.zeros(len(boxes_xyxy), dtype=bool)
    single = remains & ~is_crowd
    for label in np.unique(labels[single]) if find_twins(mended[single]) else ():
        members = np.flatnonzero((labels == label) & single)
        for _, later in find_twins(mended[members]):
            is_duplicate[members[later]] = True
    is_kept = remains & ~is_duplicate
    is_swapped = (boxes_xyxy[:, :2] > boxes_xyxy[:, 2:]).any(axis=1)
    changes = {
        "swapped": is_kept & is_swapped,
        "clipped": is_kept & (mended != ordered).any(axis=1),
        "not-finite": faults.not_finite,
        "empty": faults.empty,
        "outside": is_outside,
        "duplicate": is_duplicate,
    }
    kept = np.flatnonzero(is_kept)
    told = {kind: np.flatnonzero(mask).tolist() for kind, mask in changes.items() if mask.any()}
    return RepairedBoxes(mended[kept], kept, told)
