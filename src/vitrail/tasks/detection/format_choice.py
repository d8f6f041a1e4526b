"""Choose the format of boxes in columns, where only the numbers themselves can tell."""

from __future__ import annotations

from typing import get_args

import numpy as np
from jaxtyping import Float64, Int64

from vitrail.data.findings import Finding
from vitrail.tasks.detection.assembly import to_pixels
from vitrail.tasks.detection.dataset import BoxFormat

FITS = 0.98  # share of the boxes that must lie in their images
TOLERANCE_PX, TOLERANCE_SHARE = 2.0, 0.01  # how far a box may pass the edge and still lie in its image
USUAL: BoxFormat = "xywh"  # what the documentation of Hugging Face data sets shows for detection
WORDS: dict[str, str] = {
    "xyxy": "left, top, right, bottom",
    "xywh": "left, top, width, height",
    "cxcywh": "centre, width, height",
}


def choose_format(
    numbers: Float64[np.ndarray, "boxes 4"], sizes: Int64[np.ndarray, "boxes 2"], column: str
) -> tuple[BoxFormat, Finding]:
    """Return the format in which boxes lie in their images, and a finding about that choice.

    Args:
        numbers: the boxes as stored.
        sizes: height and width of the image of each; 0 if unknown.
        column: where they are stored; a name such as ``bbox_xyxy`` tells the format.
    """
    is_known = (sizes > 0).all(axis=1)
    numbers, sizes = numbers[is_known], sizes[is_known]
    are_shares = (
        len(numbers) > 0 and float((np.abs(numbers) <= 1 + TOLERANCE_SHARE).all(axis=1).mean()) >= FITS
    )
    formats: list[BoxFormat] = [name for name in get_args(BoxFormat) if name.endswith("shares") == are_shares]
    for layout in ("cxcywh", "xyxy", "xywh"):
        told = [name for name in formats if name.split("_")[0] == layout]
        if layout in column.lower() and told:
            return told[0], _finding("info", told[0], f"as the name of {column!r} says")
    fits = {name: _fit(numbers, sizes, name) for name in formats}
    fitting = [name for name in formats if fits[name] >= FITS]
    if len(fitting) == 1:
        others = max(share for name, share in fits.items() if name != fitting[0])
        reason = f"{fits[fitting[0]]:.0%} of them lie in their images so, read otherwise at most {others:.0%}"
        return fitting[0], _finding("info", fitting[0], reason)
    usual: BoxFormat = "xywh_shares" if are_shares else USUAL
    if fitting or not len(numbers):
        return usual, _finding("warning", usual, "which is usual; the numbers would allow another format")
    best = max(formats, key=lambda name: fits[name])
    return best, _finding("warning", best, f"and no more than {fits[best]:.0%} of them lie in their images")


def _fit(numbers: np.ndarray, sizes: np.ndarray, box_format: BoxFormat) -> float:
    if not len(numbers):
        return 0.0
    boxes = to_pixels(numbers, box_format, sizes)
    sides = sizes[:, ::-1].astype(np.float32)
    slack = np.maximum(TOLERANCE_PX, TOLERANCE_SHARE * sides)
    lies_inside = (boxes[:, 2:] > boxes[:, :2]) & (boxes[:, :2] >= -slack) & (boxes[:, 2:] <= sides + slack)
    return float(lies_inside.all(axis=1).mean())


def _finding(severity: str, box_format: BoxFormat, reason: str) -> Finding:
    layout = box_format.split("_")[0]
    unit = "shares of the image" if box_format.endswith("shares") else "pixels"
    return Finding(
        "info" if severity == "info" else "warning",
        "box-format",
        f"boxes are read as {WORDS[layout]} ({layout}) in {unit}, {reason}",
        "Nothing, if that is right; else name the column so, such as bbox_xyxy",
    )
