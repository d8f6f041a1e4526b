"""Faulty and duplicate boxes: rules on numbers, and the repairs that need no guess."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64

from vitrail.core.boxes import box_iou

EMPTY_PX = 0.01  # a side below this is zero: what single precision leaves of one
ONE_PX = 1.001  # a side up to this is one pixel
ROUNDING_PX = 2.0  # boxes pass the edge by so much if pixels are counted from 1 or sizes are rounded
ROUNDING_SHARE = 0.01  # or by this share of the image's side, if shares are rounded
SLACK_PX = 0.05  # less beyond the edge is the rounding of shares with few digits, and harmless
SAME_IOU = 0.9  # boxes that overlap so far are duplicates; BCCD has copies shifted by 2 px, at 0.92
ROWS = 256  # boxes compared with all others at a time, which bounds the memory for thousands of boxes


class BoxFaults(NamedTuple):
    """Masks of faulty boxes; a box is reported under its first fault, in this order."""

    not_finite: Bool[np.ndarray, " n"]
    """A number is infinite or NaN."""
    empty: Bool[np.ndarray, " n"]
    """Its width or its height is zero."""
    inverted: Bool[np.ndarray, " n"]
    """Its right edge lies left of its left edge, or its bottom above its top."""
    outside: Bool[np.ndarray, " n"]
    """It lies entirely outside the image."""
    beyond_edge: Bool[np.ndarray, " n"]
    """It passes the edge of the image by more than rounding explains."""
    at_edge: Bool[np.ndarray, " n"]
    """It passes the edge by what rounding explains."""
    one_pixel: Bool[np.ndarray, " n"]
    """Clipped to the image, it is at most one pixel wide or high."""


def order_corners(boxes_xyxy: Float[np.ndarray, "n 4"]) -> Float[np.ndarray, "n 4"]:
    """Swap left with right and top with bottom where they are inverted."""
    first, last = boxes_xyxy[:, :2], boxes_xyxy[:, 2:]
    return np.concatenate((np.minimum(first, last), np.maximum(first, last)), axis=1)


def clip_to(
    boxes_xyxy: Float[np.ndarray, "n 4"], sizes: Int64[np.ndarray, "n 2"]
) -> Float[np.ndarray, "n 4"]:
    """Clip boxes to their own images."""
    upper = sizes[:, [1, 0, 1, 0]].astype(boxes_xyxy.dtype)
    return np.clip(boxes_xyxy, 0, upper)


def find_faults(boxes_xyxy: Float[np.ndarray, "n 4"], sizes: Int64[np.ndarray, "n 2"]) -> BoxFaults:
    """Judge every box on its own, with the height and width of its image."""
    is_number = np.isfinite(boxes_xyxy).all(axis=1)
    boxes = np.where(is_number[:, None], boxes_xyxy, 0)
    ordered = order_corners(boxes)
    sides = ordered[:, 2:] - ordered[:, :2]
    is_inverted = (boxes[:, :2] - boxes[:, 2:] > EMPTY_PX).any(axis=1)
    is_empty = (sides < EMPTY_PX).any(axis=1)
    width_height = sizes[:, ::-1].astype(boxes.dtype)
    is_outside = (ordered[:, 2:] <= 0).any(axis=1) | (ordered[:, :2] >= width_height).any(axis=1)
    overhang = np.maximum(-ordered[:, :2], ordered[:, 2:] - width_height)
    explained = np.maximum(ROUNDING_PX, ROUNDING_SHARE * width_height)
    is_beyond, is_over = (overhang > explained).any(axis=1), (overhang > SLACK_PX).any(axis=1)
    clipped = clip_to(ordered, sizes)
    is_thin = (clipped[:, 2:] - clipped[:, :2] <= ONE_PX).any(axis=1)
    masks = (~is_number, is_empty, is_inverted, is_outside, is_beyond, is_over, is_thin)
    is_reported = np.zeros(len(boxes), dtype=bool)
    first = []
    for mask in masks:
        first.append(mask & ~is_reported)
        is_reported |= mask
    return BoxFaults(*first)


def find_twins(
    boxes_xyxy: Float[np.ndarray, "n 4"], labels: Int64[np.ndarray, " n"]
) -> list[tuple[int, int]]:
    """Return the duplicates among boxes with ordered corners, each after the earliest that it repeats.

    Args:
        labels: class of each box; boxes of two classes never repeat each other.

    >>> boxes = np.array([[0, 0, 9, 9], [5, 5, 7, 7], [0, 0, 9, 9], [0, 0, 9, 9]], dtype=np.float32)
    >>> find_twins(boxes, np.array([1, 1, 1, 2]))
    [(0, 2)]
    """
    boxes = torch.from_numpy(np.ascontiguousarray(boxes_xyxy))
    twins = []
    for start in range(0, len(boxes), ROWS):
        rows = slice(start, start + ROWS)
        same = box_iou(boxes[rows], boxes[: start + ROWS]) >= SAME_IOU
        same &= torch.from_numpy(labels[rows, None] == labels[: start + ROWS])
        same = same.tril(start - 1)  # each with those before it
        found = same.any(dim=1).nonzero()[:, 0].tolist()
        twins += [(int(same[row].nonzero()[0, 0]), start + row) for row in found]
    return twins


class RepairedBoxes(NamedTuple):
    """The remaining boxes of one image."""

    boxes_xyxy: Float[np.ndarray, "kept 4"]
    """With ordered corners, within the image."""
    kept: Int64[np.ndarray, " kept"]
    """Their original indices."""
    changes: dict[str, list[int]]
    """By kind of change, the affected boxes; all kinds but ``swapped`` and ``clipped`` drop them."""


def repair_boxes(
    boxes_xyxy: Float[np.ndarray, "n 4"],
    labels: Int64[np.ndarray, " n"],
    is_crowd: Bool[np.ndarray, " n"],
    size: tuple[int, int],
    *,
    swap: bool = True,
) -> RepairedBoxes:
    """Swap inverted corners, clip to the image, and drop what has no area or repeats another of its class.

    Args:
        boxes_xyxy: as annotated, in pixels of the image.
        labels: class of each box; boxes of two classes never repeat each other.
        is_crowd: boxes of groups are never duplicates.
        size: height and width of the image.
        swap: whether inverted corners are swapped; else these boxes are dropped.

    >>> boxes = np.array([[5, 1, 2, 3], [4, 4, 4, 9]], dtype=np.float32)
    >>> labels, is_crowd = np.zeros(2, dtype=np.int64), np.zeros(2, dtype=bool)
    >>> repair_boxes(boxes, labels, is_crowd, (8, 8)).changes
    {'swapped': [0], 'empty': [1]}
    """
    sizes = np.broadcast_to(np.array(size, dtype=np.int64), (len(boxes_xyxy), 2))
    faults = find_faults(boxes_xyxy, sizes)
    ordered = order_corners(np.where(faults.not_finite[:, None], 0, boxes_xyxy).astype(np.float32))
    mended = clip_to(ordered, sizes)
    is_negative = faults.inverted & (not swap)
    is_faulty = faults.not_finite | faults.empty | is_negative
    remains = ~is_faulty & ((mended[:, 2:] - mended[:, :2]) >= EMPTY_PX).all(axis=1)
    is_outside = ~remains & ~is_faulty
    is_duplicate = np.zeros(len(boxes_xyxy), dtype=bool)
    single = np.flatnonzero(remains & ~is_crowd)
    is_duplicate[[single[later] for _, later in find_twins(mended[single], labels[single])]] = True
    is_kept = remains & ~is_duplicate
    is_swapped = (boxes_xyxy[:, :2] > boxes_xyxy[:, 2:]).any(axis=1)
    changes = {
        "swapped": is_kept & is_swapped,
        "clipped": is_kept & (np.abs(mended - ordered) > SLACK_PX).any(axis=1),
        "negative": is_negative,
        "not-finite": faults.not_finite,
        "empty": faults.empty,
        "outside": is_outside,
        "duplicate": is_duplicate,
    }
    kept = np.flatnonzero(is_kept)
    occurred = {kind: np.flatnonzero(mask).tolist() for kind, mask in changes.items() if mask.any()}
    return RepairedBoxes(mended[kept], kept, occurred)
