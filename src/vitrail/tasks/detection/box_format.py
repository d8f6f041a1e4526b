"""Which format do the four numbers of a box have? Found from the images that boxes must lie in.

Where a source names no format, ``choose_format`` takes the one in which the boxes lie in their images. Where
it claims one, ``judge_format`` recovers the stored numbers from what the reader made of them and reads them
in every format. Another one is suspected only if the claimed one fails for many boxes of all splits together
and it fits nearly all: a small split alone may fit several. Boxes that clearly have another format than the
rest are reported apart.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int64

from vitrail.core.boxes import xyxy_to_cxcywh, xyxy_to_xywh
from vitrail.data.findings import Finding, Severity, number_of
from vitrail.data.image_checks import OF_THE_SOURCE
from vitrail.tasks.detection.assembly import to_pixels
from vitrail.tasks.detection.dataset import BoxDataset, BoxFormat

FITS = 0.98  # share of the boxes that must lie in their images
FAILS = 0.9  # the claimed format fits fewer boxes than this share
MIN_BOXES = 5  # of the source; fewer prove nothing
MIN_AGAINST, MIXED = 3, 0.01  # boxes of a split, and share of them, that prove it to be of several formats
MIXED_RARE = 0.05  # likewise of a rare format, as boxes beyond an edge may lie inside with x and y exchanged
TOLERANCE_PX, TOLERANCE_SHARE = 2.0, 0.01  # how far a box may pass the edge and still lie in its image
USUAL = "xywh"  # what the documentation of Hugging Face data sets shows for detection
LAYOUTS = {
    "xyxy": "left, top, right, bottom",
    "xywh": "left, top, width, height",
    "cxcywh": "centre, width, height",
    "yxyx": "top, left, bottom, right",
    "yxhw": "top, left, height, width",
}
UNITS = {"": "pixels", "shares": "shares", "percent": "percent"}
# Of several that fit as many boxes, the earlier demands more of them.
FORMATS = ("xyxy", "xyxy_shares", "xywh", "xywh_shares", "cxcywh", "cxcywh_shares")
RARE = ("yxyx", "yxyx_shares", "yxhw", "yxhw_shares", "xyxy_percent", "xywh_percent", "cxcywh_percent")
LARGE_PX = 200  # in images of larger sides, boxes that all end before the hundredth pixel are in percent


def choose_format(
    numbers: Float64[np.ndarray, "boxes 4"], sizes: Int64[np.ndarray, "boxes 2"], column: str
) -> tuple[BoxFormat, Finding]:
    """Return the format in which boxes lie in their images, and a finding about that choice.

    Args:
        numbers: the boxes as stored.
        sizes: height and width of the image of each; 0 if unknown.
        column: where they are stored; a name such as ``bbox_xyxy`` tells the format.
    """
    are_shares = _are_below(numbers, 1)
    formats = [name for name in FORMATS if name.endswith("shares") == are_shares and name != "cxcywh"]
    for layout in ("cxcywh", "xyxy", "xywh"):
        named = [name for name in formats if name.split("_")[0] == layout]
        if layout in column.lower() and named:
            return named[0], _choice("info", named[0], f"as the name of {column!r} says")
    masks = _fits(numbers, sizes, "xyxy")
    fits = {name: float(masks[name].mean()) if len(masks[name]) else 0.0 for name in formats}
    fitting = [name for name in formats if fits[name] >= FITS]
    if len(fitting) == 1:
        others = max(share for name, share in fits.items() if name != fitting[0])
        reason = f"{fits[fitting[0]]:.0%} of them lie in their images so, read otherwise at most {others:.0%}"
        return fitting[0], _choice("info", fitting[0], reason)
    usual = "xywh_shares" if are_shares else USUAL
    if fitting or not any(fits.values()):
        return usual, _choice("warning", usual, "which is usual; the numbers would allow another format")
    best = max(formats, key=lambda name: fits[name])
    return best, _choice("warning", best, f"and no more than {fits[best]:.0%} of them lie in their images")


class Suspicion(NamedTuple):
    """Another format that boxes seem to have."""

    claimed: BoxFormat
    """What they were read as, or, of some boxes of a source, the format of the rest."""
    likely: BoxFormat
    against: int
    """Number of boxes outside their images as claimed, and inside in the likely format."""
    total: int
    whose: str = "the boxes"
    splits: tuple[str, ...] = ()
    """The splits of mixed formats."""

    @property
    def is_unclear(self) -> bool:
        """Whether y may stand before x as well: TensorFlow writes corners in shares so."""
        return self.likely == "xyxy_shares" and self.claimed == "xywh"

    def explain(self) -> str:
        either = f" or as {_describe('yxyx_shares')}" if self.is_unclear else ""
        return (
            f"read as {_describe(self.claimed)}, {self.against} of {number_of(self.total, 'box')} cannot lie "
            f"in their images; as {_describe(self.likely)}{either}, they can"
        )


class FormatJudgement(NamedTuple):
    """The likely box formats of a whole source."""

    suspicion: Suspicion | None
    """Against the format that the source claims, from the boxes of all splits together."""
    mixed: tuple[Suspicion, ...]
    """Against boxes of single splits, whose format is not that of the source as a whole."""


def judge_format(
    dataset: BoxDataset,
    boxes_xyxy: Float[np.ndarray, "n 4"],
    sizes: Int64[np.ndarray, "n 2"],
    split: np.ndarray,
    *,
    y_first: bool = True,
) -> FormatJudgement:
    """Judge the boxes of all splits together, then those of each split of the source against that.

    Args:
        boxes_xyxy: of the data set, as its reader made them.
        sizes: height and width of the image of each.
        split: name of the split of each.
        y_first: whether formats are tried in which y stands before x.
    """
    claimed = dataset.facts.box_format
    together = _fits(boxes_xyxy, sizes, claimed, y_first)
    suspicion = _suspect(together, claimed)
    reading = claimed if suspicion is None else suspicion.likely
    origins = {"validation": dataset.validation_origin, "test": dataset.test_origin}
    own = [name for name, origin in origins.items() if origin.startswith(OF_THE_SOURCE)]
    drawn_from = tuple(name for name in dataset.splits if name not in own)  # the source's training split
    mixed = []
    for names in (drawn_from, *((name,) for name in own)):
        rows = np.isin(split, names)
        whose = f"boxes of the {names[0]} split" if own else "boxes"
        fits = _fits(boxes_xyxy[rows], sizes[rows], claimed, y_first)
        mixed.append(_find_others(fits, reading, whose, names))
    if not any(mixed):
        mixed = [_find_others(together, reading, "boxes", tuple(dataset.splits))]
    return FormatJudgement(suspicion, tuple(filter(None, mixed)))


def as_stored(
    boxes_xyxy: Float[np.ndarray, "n 4"], sizes: Int64[np.ndarray, "n 2"], box_format: BoxFormat
) -> Float64[np.ndarray, "n 4"]:
    """Undo what a reader did: corners in pixels to the numbers of the source, of one of ``FORMATS``."""
    boxes = torch.from_numpy(boxes_xyxy.astype(np.float64))
    convert = {"xywh": xyxy_to_xywh, "cxcywh": xyxy_to_cxcywh}.get(box_format.split("_")[0])
    numbers = (convert(boxes) if convert else boxes).numpy()
    return numbers / sizes[:, [1, 0, 1, 0]].clip(min=1) if box_format.endswith("shares") else numbers


def reread_boxes(
    boxes_xyxy: Float[np.ndarray, "n 4"], sizes: Int64[np.ndarray, "n 2"], suspicion: Suspicion
) -> Float[np.ndarray, "n 4"]:
    """Reinterpret the numbers that the reader converted, with its sizes, in the likely format."""
    return to_pixels(as_stored(boxes_xyxy, sizes, suspicion.claimed), suspicion.likely, sizes)


def _suspect(fits: dict[BoxFormat, np.ndarray], claimed: BoxFormat) -> Suspicion | None:
    """Suspect another format if the claimed one fails for many boxes and it fits nearly all."""
    for formats in (FORMATS, [name for name in RARE if name in fits]):
        fitting = np.any([fits[name] for name in (claimed, *formats)], axis=0)  # others prove nothing
        # In a tie, the format of the claimed layout.
        likely = max(
            formats, key=lambda name: (fits[name].sum(), name.split("_")[0] == claimed.split("_")[0])
        )
        is_proven = len(fitting) >= MIN_BOXES and fitting.mean() >= FAILS
        if is_proven and fits[claimed][fitting].mean() < FAILS and fits[likely][fitting].mean() >= FITS:
            return Suspicion(claimed, likely, int((fits[likely] & ~fits[claimed]).sum()), len(fitting))
    return None


def _find_others(
    fits: dict[BoxFormat, np.ndarray], reading: BoxFormat, whose: str, splits: tuple[str, ...]
) -> Suspicion | None:
    """Find a format in which nearly all boxes lie in their images that do not as they are read.

    Beside pixels, centres in pixels are no such format: read so, most boxes that pass the edge a little lie
    inside.
    """
    total, is_outside = len(fits[reading]), ~fits[reading]
    for formats, least in ((FORMATS, MIXED), (RARE, MIXED_RARE)):
        passing = "cxcywh" if "_" not in reading else ""
        others = [name for name in formats if name in fits and name not in (reading, passing)]
        against = {name: int((fits[name] & is_outside).sum()) for name in others}
        other = max(others, key=against.__getitem__)
        if against[other] >= max(MIN_AGAINST, least * total, FAILS * is_outside.sum()):
            some = "some " if fits[other].mean() < FITS else ""
            return Suspicion(reading, other, against[other], total, some + whose, splits)
    return None


def _fits(
    boxes_xyxy: Float[np.ndarray, "n 4"],
    sizes: Int64[np.ndarray, "n 2"],
    claimed: BoxFormat,
    y_first: bool = True,
) -> dict[BoxFormat, np.ndarray]:
    """Tell for each format which boxes lie in their images, of those whose image has a known size."""
    is_known = np.isfinite(boxes_xyxy).all(axis=1) & (sizes > 1).all(axis=1)
    of_images = sizes[is_known]
    stored = as_stored(boxes_xyxy[is_known], of_images, claimed)
    fits = {}
    for name in (each for each in (*FORMATS, *RARE) if y_first or not each.startswith("y")):
        boxes_xyxy = to_pixels(stored, name, of_images)
        fits[name] = _lie_inside(boxes_xyxy, of_images)
        if "_" not in name:  # shares read as pixels give boxes of less than a pixel, inside the image
            fits[name] &= (boxes_xyxy[:, 2:] - boxes_xyxy[:, :2] >= 1).all(axis=1)
    # Read as pixels, percent give boxes in the first corner of large images.
    are_percent = _are_below(stored, 100) and not _are_below(stored, 10) and np.median(of_images) > LARGE_PX
    impossible = [each for each in fits if are_percent != each.endswith("percent") and "shares" not in each]
    return {name: mask & (name == claimed or name not in impossible) for name, mask in fits.items()}


def _are_below(numbers: np.ndarray, most: float) -> bool:
    is_below = (np.abs(numbers) <= most * (1 + TOLERANCE_SHARE)).all(axis=1)
    return len(numbers) > 0 and float(is_below.mean()) >= FITS


def _lie_inside(boxes_xyxy: np.ndarray, sizes: np.ndarray) -> Bool[np.ndarray, " n"]:
    sides = sizes[:, ::-1].astype(np.float32)
    slack = np.maximum(TOLERANCE_PX, TOLERANCE_SHARE * sides)
    first, last = boxes_xyxy[:, :2], boxes_xyxy[:, 2:]
    return np.asarray(((last > first) & (first >= -slack) & (last <= sides + slack)).all(axis=1))


def _describe(box_format: BoxFormat) -> str:
    layout, _, unit = box_format.partition("_")
    return f"{LAYOUTS[layout]} ({layout}) in {UNITS[unit]}"


def _choice(severity: Severity, box_format: BoxFormat, reason: str) -> Finding:
    return Finding(
        severity,
        "box-format",
        f"boxes are read as {_describe(box_format)}, {reason}",
        "Nothing, if that is right; else name the column so, such as bbox_xyxy",
    )
