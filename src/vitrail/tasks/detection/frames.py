"""Which pixels the boxes of an image were drawn on: the upright image, its unturned file, or another size.

Annotations may state a height and a width. If these are not those of the upright image, boxes may be meant
for the file as stored, before Exif turns it, or for a larger or smaller copy of the image.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Float

from vitrail.data.inspection import Inspection

ROUNDING_PX = 1  # a claimed side that differs by so much was rounded
ASPECT_TOLERANCE = 0.02  # relative; a resized copy has the aspect of the original, up to rounding


class Frame(NamedTuple):
    """What the boxes of one image were drawn on."""

    kind: Literal["upright", "turned", "scaled", "unclear-turn", "unknown"]
    """``upright``: the image as displayed; ``turned``: the file as stored, which Exif turns; ``scaled``: the
    image at another size; ``unclear-turn``: upright or as stored, which the annotated size does not tell or
    is missing; ``unknown``: the annotated size is that of another picture."""
    size: tuple[int, int]
    """Its height and width if known, else those of the upright image."""


def frame_of(
    seen: Inspection, claimed: tuple[int, int] | None, boxes_xyxy: Float[np.ndarray, "n 4"]
) -> Frame:
    """Decide from the annotated height and width, None or a zero if missing, what boxes were drawn on."""
    upright = (seen.height, seen.width)
    stored = upright[::-1] if seen.orientation >= 5 else upright
    is_turned = seen.orientation != 1
    if claimed is None or min(claimed) <= 0:
        return Frame("unclear-turn" if is_turned else "upright", upright)
    if is_turned and _is_near(claimed, stored):
        if stored == upright:  # square, or turned by half: both have the annotated size
            return Frame("unclear-turn", upright)
        if claimed != upright:
            return Frame("turned", stored)
    if _is_near(claimed, upright):
        return Frame("upright", upright)
    aspect = (claimed[1] / claimed[0]) / (upright[1] / upright[0])
    if abs(aspect - 1) <= ASPECT_TOLERANCE and _fit(boxes_xyxy, claimed):
        return Frame("scaled", claimed)
    return Frame("unknown", upright)


def to_upright(
    boxes_xyxy: Float[np.ndarray, "n 4"], frame: Frame, seen: Inspection
) -> Float[np.ndarray, "n 4"]:
    """Map boxes from what they were drawn on to the upright image, if the frame is known."""
    if frame.kind == "turned":
        return turn_boxes(boxes_xyxy, seen.orientation, frame.size)
    if frame.kind == "scaled":
        height, width = seen.height / frame.size[0], seen.width / frame.size[1]
        return boxes_xyxy * np.array([width, height, width, height], dtype=boxes_xyxy.dtype)
    return boxes_xyxy


def turn_boxes(
    boxes_xyxy: Float[np.ndarray, "n 4"], orientation: int, size: tuple[int, int]
) -> Float[np.ndarray, "n 4"]:
    """Turn boxes as an Exif orientation turns the pixels.

    Args:
        boxes_xyxy: on the pixels as stored.
        orientation: 1..8 (Exif 2.32, table 4).
        size: height and width of the pixels as stored.

    >>> turn_boxes(np.array([[0.0, 0.0, 2.0, 1.0]], dtype=np.float32), 6, (4, 7))
    array([[3., 0., 4., 2.]], dtype=float32)
    """
    height, width = size
    left, top, right, bottom = boxes_xyxy.T
    turned = {
        1: (left, top, right, bottom),
        2: (width - right, top, width - left, bottom),
        3: (width - right, height - bottom, width - left, height - top),
        4: (left, height - bottom, right, height - top),
        5: (top, left, bottom, right),
        6: (height - bottom, left, height - top, right),
        7: (height - bottom, width - right, height - top, width - left),
        8: (top, width - right, bottom, width - left),
    }[orientation]
    return np.stack(turned, axis=1)


def _is_near(size: tuple[int, int], other: tuple[int, int]) -> bool:
    return all(abs(a - b) <= ROUNDING_PX for a, b in zip(size, other, strict=True))


def _fit(boxes_xyxy: np.ndarray, size: tuple[int, int]) -> bool:
    finite = boxes_xyxy[np.isfinite(boxes_xyxy).all(axis=1)]
    slack = 1 + ASPECT_TOLERANCE
    return bool((finite[:, [0, 2]] <= size[1] * slack).all() and (finite[:, [1, 3]] <= size[0] * slack).all())
