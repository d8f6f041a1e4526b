"""Can the four numbers of a box be what the source says they are, or do they fit another format?

The numbers as stored are recovered from what the reader made of them, and read in every format. A format is
suspected only where the claimed one fails for many boxes of a split and another one fits nearly all.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int64

from vitrail.boxes import cxcywh_to_xyxy, xywh_to_xyxy, xyxy_to_cxcywh, xyxy_to_xywh
from vitrail.data.boxes.dataset import BoxDataset, BoxFormat, BoxSplit

LAYOUTS = ("xyxy", "xywh", "cxcywh")  # of several that fit as many boxes, the earlier demands more of them
FAILS = 0.9  # the claimed format fits fewer boxes than this share
FITS = 0.98  # the suspected format fits at least this share
MIN_BOXES = 5  # of a split; fewer prove nothing
TOLERANCE_PX, TOLERANCE_SHARE = 2.0, 0.01  # how far a box may pass the edge and still fit
NAMES = {
    "xyxy": "left, top, right, bottom",
    "xywh": "left, top, width, height",
    "cxcywh": "centre, width, height",
}


class Suspicion(NamedTuple):
    """What the boxes of a split seem to be instead of what the source claims."""

    claimed: tuple[str, str]
    """Layout and unit that the source claims."""
    likely: tuple[str, str]
    """Layout and unit that fit."""
    claimed_fit: float
    """Share of the boxes that lie in their images when read as claimed, 0..1."""
    likely_fit: float
    """The same, read as is likely."""

    def explain(self) -> str:
        """Say it in words."""
        claimed, likely = (f"{NAMES[layout]} ({layout}) in {unit}" for layout, unit in self[:2])
        return (
            f"read as {claimed}, {self.claimed_fit:.0%} of the boxes lie in their images; "
            f"as {likely}, {self.likely_fit:.0%}"
        )


def suspect_formats(dataset: BoxDataset) -> dict[str, Suspicion]:
    """Return the suspicion against each split whose boxes cannot be what the source claims."""
    found = {}
    for name, split in dataset.splits.items():
        suspicion = _suspect(split, dataset.facts.box_format)
        if suspicion is not None:
            found[name] = suspicion
    return found


def reread_boxes(
    boxes_xyxy: Float[np.ndarray, "n 4"], sizes: Int64[np.ndarray, "n 2"], suspicion: Suspicion
) -> Float[np.ndarray, "n 4"]:
    """Return what the stored numbers are when they are read in the likely format, as corners in pixels.

    Args:
        boxes_xyxy: what the reader made of them.
        sizes: height and width of the image of each box that the reader used.
        suspicion: against the split.
    """
    return _read(_stored(boxes_xyxy, sizes, suspicion.claimed), sizes, suspicion.likely)


def _suspect(split: BoxSplit, box_format: BoxFormat) -> Suspicion | None:
    counts = [len(labels) for labels in split.labels]
    sizes = np.repeat(split.sizes, counts, axis=0)
    boxes = np.concatenate([np.zeros((0, 4), dtype=np.float32), *split.boxes])
    is_known = np.isfinite(boxes).all(axis=1) & (sizes > 1).all(axis=1)
    boxes, sizes = boxes[is_known], sizes[is_known]
    if len(boxes) < MIN_BOXES:
        return None
    claimed = _claim(box_format)
    stored = _stored(boxes, sizes, claimed)
    # Shares taken for pixels make boxes of less than a pixel in a corner, which lie in the image.
    are_shares = float((np.abs(stored) <= 1 + TOLERANCE_SHARE).all(axis=1).mean()) >= FITS
    fit = 0.0 if claimed[1] == "pixels" and are_shares else _fit(stored, sizes, claimed)
    if fit >= FAILS:
        return None
    unit = "shares" if are_shares else "pixels"
    fits = {(layout, unit): _fit(stored, sizes, (layout, unit)) for layout in LAYOUTS}
    likely = max(fits, key=lambda reading: (fits[reading], reading[0] == claimed[0]))
    if likely == claimed or fits[likely] < FITS:
        return None
    return Suspicion(claimed, likely, fit, fits[likely])


def _claim(box_format: BoxFormat) -> tuple[str, str]:
    """Return the layout and the unit of a format: ``cxcywh_shares`` is ``cxcywh`` in shares."""
    return box_format.split("_")[0], "shares" if box_format.endswith("shares") else "pixels"


def _fit(stored: np.ndarray, sizes: np.ndarray, reading: tuple[str, str]) -> float:
    """Return the share of the boxes that have an area and lie in their images, up to rounding."""
    boxes = _read(stored, sizes, reading)
    sides = sizes[:, ::-1].astype(np.float32)
    slack = np.maximum(TOLERANCE_PX, TOLERANCE_SHARE * sides)
    fits = (boxes[:, 2:] > boxes[:, :2]) & (boxes[:, :2] >= -slack) & (boxes[:, 2:] <= sides + slack)
    return float(fits.all(axis=1).mean())


def _stored(boxes_xyxy: np.ndarray, sizes: np.ndarray, reading: tuple[str, str]) -> np.ndarray:
    """Undo what a reader did: corners in pixels to the numbers of the source."""
    layout, unit = reading
    boxes = torch.from_numpy(np.ascontiguousarray(boxes_xyxy, dtype=np.float32))
    convert = {"xywh": xyxy_to_xywh, "cxcywh": xyxy_to_cxcywh}.get(layout)
    numbers = (convert(boxes) if convert else boxes).numpy()
    return numbers / _scale(sizes) if unit == "shares" else numbers


def _read(stored: np.ndarray, sizes: np.ndarray, reading: tuple[str, str]) -> np.ndarray:
    """Read stored numbers in a format: to corners in pixels."""
    layout, unit = reading
    numbers = stored * _scale(sizes) if unit == "shares" else stored
    boxes = torch.from_numpy(np.ascontiguousarray(numbers, dtype=np.float32))
    convert = {"xywh": xywh_to_xyxy, "cxcywh": cxcywh_to_xyxy}.get(layout)
    return (convert(boxes) if convert else boxes).numpy()


def _scale(sizes: np.ndarray) -> np.ndarray:
    return sizes[:, [1, 0, 1, 0]].astype(np.float32)
