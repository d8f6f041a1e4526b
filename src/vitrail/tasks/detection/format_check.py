"""Do the four numbers of a box fit the format that the source claims, or another one?

The stored numbers are recovered from what the reader made of them, and read in every format. A format is
suspected only if the claimed one fails for many boxes of all splits together and another one fits nearly
all: a small split alone may fit several. A split clearly in another format than the rest is reported apart.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int64

from vitrail.core.boxes import cxcywh_to_xyxy, xywh_to_xyxy, xyxy_to_cxcywh, xyxy_to_xywh
from vitrail.core.errors import DataError
from vitrail.tasks.detection.dataset import BoxDataset, BoxFormat, BoxSplit

LAYOUTS = ("xyxy", "xywh", "cxcywh")  # of several that fit as many boxes, the earlier demands more of them
FAILS = 0.9  # the claimed format fits fewer boxes than this share
FITS = 0.98  # the suspected format fits at least this share
MIN_BOXES = 5  # of the source; fewer prove nothing
MIN_AGAINST = 3  # boxes of a split that speak against the format of the others
TOLERANCE_PX, TOLERANCE_SHARE = 2.0, 0.01  # how far a box may pass the edge and still fit
NAMES = {
    "xyxy": "left, top, right, bottom",
    "xywh": "left, top, width, height",
    "cxcywh": "centre, width, height",
}


class Suspicion(NamedTuple):
    """The format that boxes seem to have instead of the claimed one, or of that of the other splits."""

    claimed: tuple[str, str]
    """Layout and unit that the source claims, or that it has as a whole."""
    likely: tuple[str, str]
    claimed_fit: float
    """Share of the boxes that lie in their images when read as claimed, 0..1."""
    likely_fit: float
    """The same, in the likely format."""

    def explain(self) -> str:
        claimed, likely = (f"{NAMES[layout]} ({layout}) in {unit}" for layout, unit in self[:2])
        return (
            f"read as {claimed}, {self.claimed_fit:.0%} of the boxes lie in their images; "
            f"as {likely}, {self.likely_fit:.0%}"
        )


class FormatJudgement(NamedTuple):
    """The likely box formats of a whole source."""

    suspicion: Suspicion | None
    """Against the format that the source claims, from the boxes of all splits together."""
    contradictions: dict[str, Suspicion]
    """By name of each split whose format differs from the source as a whole."""


def judge_format(dataset: BoxDataset) -> FormatJudgement:
    """Judge the boxes of all splits together, then whether each split agrees with that."""
    box_format = dataset.facts.box_format
    suspicion = _judge(_stored_in(dataset.splits.values(), box_format))
    reading = _claim(box_format) if suspicion is None else suspicion.likely
    contradictions = {
        name: against
        for name, split in dataset.splits.items()
        if (against := _contradict(_stored_in([split], box_format), reading)) is not None
    }
    return FormatJudgement(suspicion, contradictions)


def refuse_mixed(dataset: BoxDataset) -> None:
    """Raise a ``DataError`` if the splits have their boxes in different formats."""
    for split, contradiction in judge_format(dataset).contradictions.items():
        raise DataError(
            f"the boxes of the {split} split of {dataset.source} have another format than the rest: "
            + contradiction.explain(),
            expected="boxes of one format in all splits",
            remedy="Write all splits in one format; which one is right cannot be known from the numbers",
        )


def reread_boxes(
    boxes_xyxy: Float[np.ndarray, "n 4"], sizes: Int64[np.ndarray, "n 2"], suspicion: Suspicion
) -> Float[np.ndarray, "n 4"]:
    """Reinterpret the numbers that the reader converted, with its sizes, in the likely format."""
    return _read(_stored(boxes_xyxy, sizes, suspicion.claimed), sizes, suspicion.likely)


def _judge(stored: _Stored) -> Suspicion | None:
    """Judge boxes whose claimed format fails for many while another fits nearly all that fit any."""
    if len(stored.numbers) < MIN_BOXES:
        return None
    fits = _fits(stored)
    fitting = np.any(list(fits.values()), axis=0)  # a box that lies in its image in no format proves nothing
    if fitting.mean() < FAILS or fits[stored.claimed][fitting].mean() >= FAILS:
        return None
    likely = _likely(fits, stored.claimed)
    if fits[likely][fitting].mean() < FITS:
        return None
    return _suspicion(fits, stored.claimed, likely)


def _contradict(stored: _Stored, reading: tuple[str, str]) -> Suspicion | None:
    fits = _fits(stored)
    fitting = np.any(list(fits.values()), axis=0)
    likely = _likely(fits, reading)
    num_against = int((fits[likely] & ~fits[reading]).sum())
    if num_against < MIN_AGAINST or fits[reading][fitting].mean() >= FAILS:
        return None
    return _suspicion(fits, reading, likely) if fits[likely][fitting].mean() >= FITS else None


def _suspicion(
    fits: dict[tuple[str, str], np.ndarray], claimed: tuple[str, str], likely: tuple[str, str]
) -> Suspicion:
    return Suspicion(claimed, likely, float(fits[claimed].mean()), float(fits[likely].mean()))


def _likely(fits: dict[tuple[str, str], np.ndarray], preferred: tuple[str, str]) -> tuple[str, str]:
    """Return the format that fits most boxes; in a tie, that of the preferred layout."""
    return max(fits, key=lambda reading: (fits[reading].sum(), reading[0] == preferred[0]))


class _Stored(NamedTuple):
    """Boxes as the source stores them, where they and the sizes of their images are known."""

    numbers: np.ndarray
    sizes: np.ndarray
    claimed: tuple[str, str]


def _stored_in(splits: Iterable[BoxSplit], box_format: BoxFormat) -> _Stored:
    boxes, sizes = [np.zeros((0, 4), dtype=np.float32)], [np.zeros((0, 2), dtype=np.int64)]
    for split in splits:
        boxes += split.boxes
        sizes.append(np.repeat(split.sizes, [len(labels) for labels in split.labels], axis=0))
    together, of_images = np.concatenate(boxes), np.concatenate(sizes)
    is_known = np.isfinite(together).all(axis=1) & (of_images > 1).all(axis=1)
    claimed = _claim(box_format)
    return _Stored(_stored(together[is_known], of_images[is_known], claimed), of_images[is_known], claimed)


def _fits(stored: _Stored) -> dict[tuple[str, str], np.ndarray]:
    numbers, sizes, _ = stored
    # Normalised numbers read as pixels give boxes of less than a pixel in a corner, inside the image.
    is_share = (np.abs(numbers) <= 1 + TOLERANCE_SHARE).all(axis=1)
    are_shares = len(numbers) > 0 and is_share.mean() >= FITS
    return {
        (layout, unit): _fit(numbers, sizes, (layout, unit)) & (unit == "shares" or not are_shares)
        for layout in LAYOUTS
        for unit in ("pixels", "shares")
    }


def _claim(box_format: BoxFormat) -> tuple[str, str]:
    """Return the layout and the unit of a format: ``cxcywh_shares`` is ``cxcywh`` in shares."""
    return box_format.split("_")[0], "shares" if box_format.endswith("shares") else "pixels"


def _fit(stored: np.ndarray, sizes: np.ndarray, reading: tuple[str, str]) -> np.ndarray:
    boxes = _read(stored, sizes, reading)
    sides = sizes[:, ::-1].astype(np.float32)
    slack = np.maximum(TOLERANCE_PX, TOLERANCE_SHARE * sides)
    fits = (boxes[:, 2:] > boxes[:, :2]) & (boxes[:, :2] >= -slack) & (boxes[:, 2:] <= sides + slack)
    return np.asarray(fits.all(axis=1))


def _stored(boxes_xyxy: np.ndarray, sizes: np.ndarray, reading: tuple[str, str]) -> np.ndarray:
    """Undo what a reader did: corners in pixels to the numbers of the source."""
    layout, unit = reading
    boxes = torch.from_numpy(np.ascontiguousarray(boxes_xyxy, dtype=np.float32))
    convert = {"xywh": xyxy_to_xywh, "cxcywh": xyxy_to_cxcywh}.get(layout)
    numbers = (convert(boxes) if convert else boxes).numpy()
    return numbers / _scale(sizes) if unit == "shares" else numbers


def _read(stored: np.ndarray, sizes: np.ndarray, reading: tuple[str, str]) -> np.ndarray:
    layout, unit = reading
    numbers = stored * _scale(sizes) if unit == "shares" else stored
    boxes = torch.from_numpy(np.ascontiguousarray(numbers, dtype=np.float32))
    convert = {"xywh": xywh_to_xyxy, "cxcywh": cxcywh_to_xyxy}.get(layout)
    return (convert(boxes) if convert else boxes).numpy()


def _scale(sizes: np.ndarray) -> np.ndarray:
    return sizes[:, [1, 0, 1, 0]].astype(np.float32)
