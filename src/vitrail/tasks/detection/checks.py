"""Checks of single boxes: formats, corners, edges, repetitions, and images with more than is likely."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np

from vitrail.data.findings import MAX_LISTED, Finding, number_of
from vitrail.tasks.detection.faults import find_twins, order_corners
from vitrail.tasks.detection.inspection import ExaminedBoxes

SCORED_BOXES = 100  # of an image, the best ones, that the COCO protocol counts
FAR_MORE = 10  # times the usual number of boxes in an image


def find_wrong_formats(examined: ExaminedBoxes) -> Iterator[Finding]:
    """Boxes whose numbers cannot be what the format claims and fit another one; splits of several formats."""

    def tell(check: str, message: str, remedy: str, splits: Collection[str]) -> Finding:
        chosen = np.array([image.split in splits for image in examined.images], dtype=bool)
        places = np.flatnonzero(chosen[examined.table.image])
        named = tuple(map(examined.name_box, places[:MAX_LISTED].tolist()))
        return Finding("error", check, message, remedy, named, len(places))

    suspicion, contradictions = examined.format
    if suspicion is not None and not contradictions:
        message = f"the boxes are not what the source claims: {suspicion.explain()}"
        remedy = "Correct the program that wrote them; a clean copy (--fix) has them read the likely way"
        yield tell("wrong-format", message, remedy, examined.dataset.splits.keys())
    for split, contradiction in contradictions.items():
        message = f"the boxes of the {split} split have another format: {contradiction.explain()}"
        remedy = "Write all splits in one format; no clean copy (--fix) is made of several"
        yield tell("mixed-formats", message, remedy, (split,))


def find_impossible_boxes(examined: ExaminedBoxes) -> Iterator[Finding]:
    """Boxes that no object can have: no numbers, no area, corners swapped, nothing of it in the image."""
    faults = examined.faults
    told = (
        (faults.not_finite, "not-finite", "with a number that is infinite or none"),
        (faults.empty, "zero-area", "without width or height"),
        (faults.inverted, "inverted", "with right before left, or bottom above top"),
        (faults.outside, "outside", "with nothing of it in the image"),
    )
    for mask, check, text in told:
        if mask.any():
            remedy = "Left out in training and of a clean copy (--fix)"
            if check == "inverted":
                remedy = "Left out in training; a clean copy (--fix) has the corners swapped"
            yield Finding(
                "warning",
                check,
                f"{number_of(int(mask.sum()), 'box', 'boxes')} {text}",
                remedy,
                examined.box_list(mask),
            )


def find_edge_boxes(examined: ExaminedBoxes) -> Iterator[Finding]:
    """Boxes that pass the edge of their image."""
    faults = examined.faults
    if faults.beyond_edge.any():
        yield Finding(
            "warning",
            "beyond-edge",
            f"{number_of(int(faults.beyond_edge.sum()), 'box', 'boxes')} partly outside the image",
            "Clipped in training and in a clean copy (--fix); look whether it belongs to the image",
            examined.box_list(faults.beyond_edge),
        )
    if faults.at_edge.any():
        yield Finding(
            "info",
            "at-edge",
            f"{number_of(int(faults.at_edge.sum()), 'box', 'boxes')} over the edge by no more than rounding",
            "Nothing to do: clipped in training and in a clean copy (--fix)",
            examined.box_list(faults.at_edge),
        )


def find_one_pixel_boxes(examined: ExaminedBoxes) -> Iterator[Finding]:
    """Boxes that are one pixel wide or high."""
    mask = examined.faults.one_pixel
    if mask.any():
        yield Finding(
            "warning",
            "one-pixel",
            f"{number_of(int(mask.sum()), 'box', 'boxes')} of one pixel or less in width or height",
            "Used like others; remove what came from a slip of the mouse",
            examined.box_list(mask),
        )


def find_repeated_boxes(examined: ExaminedBoxes) -> Iterator[Finding]:
    """Boxes drawn twice, under the same class or under two."""
    table = examined.table
    is_judged = np.array([image.split not in examined.misread for image in examined.images], dtype=bool)
    usable = np.flatnonzero(examined.is_sound & ~table.is_crowd & is_judged[table.image])
    starts = np.flatnonzero(np.diff(table.image[usable], prepend=-1))
    repeated, conflicting = [], []
    for members in np.split(usable, starts[1:]):
        ordered = order_corners(table.boxes_xyxy[members])
        twins = find_twins(ordered)
        if not twins:
            continue
        for label in np.unique(table.labels[members]):
            of_label = members[table.labels[members] == label]
            for first, later in find_twins(ordered[table.labels[members] == label]):
                repeated.append(
                    f"{examined.name_box(int(of_label[later]))} = {_number(examined, of_label, first)}"
                )
        conflicting += [
            f"{examined.name_box(int(members[later]))} = {_number(examined, members, first)}"
            for first, later in twins
            if table.labels[members[first]] != table.labels[members[later]]
        ]
    if repeated:
        yield Finding(
            "warning",
            "repeated-boxes",
            f"{number_of(len(repeated), 'box', 'boxes')} drawn twice: same class, same place",
            "Each second one counts as missed; a clean copy (--fix) keeps the first of each",
            tuple(repeated),
        )
    if conflicting:
        yield Finding(
            "warning",
            "two-classes",
            f"{number_of(len(conflicting), 'box', 'boxes')} in the same place as one of another class",
            "Keep the right class of each, unless objects of both are there",
            tuple(conflicting),
        )


def find_crowded_images(examined: ExaminedBoxes) -> Iterator[Finding]:
    """Images with absurdly many boxes, or with more than the score counts."""
    counts = np.bincount(examined.table.image, minlength=len(examined.images))
    if not counts.any():
        return
    usual = float(np.median(counts[counts > 0]))
    is_many = counts > SCORED_BOXES
    is_absurd = is_many & (counts > FAR_MORE * usual)

    def describe(chosen: np.ndarray) -> tuple[str, ...]:
        return tuple(
            f"{examined.images[index].name}: {number_of(int(counts[index]), 'box', 'boxes')}"
            for index in np.flatnonzero(chosen)
        )

    if items := describe(is_absurd):
        yield Finding(
            "warning",
            "many-boxes",
            f"{number_of(len(items), 'image')} with over {FAR_MORE} times the usual {usual:.0f} boxes",
            "Look at them; such heaps come from annotations that were joined or written twice",
            items,
        )
    if items := describe(is_many & ~is_absurd):
        yield Finding(
            "info",
            "crowded-images",
            f"{number_of(len(items), 'image')} with more than {SCORED_BOXES} boxes, up to {counts.max()}",
            f"Let the model answer with as many (model.num_queries); the COCO score counts {SCORED_BOXES}",
            items,
        )


def _number(examined: ExaminedBoxes, members: np.ndarray, place: int) -> str:
    index = int(members[place])
    label = examined.class_names[int(examined.table.labels[index])]
    return f"box {examined.table.number[index]} ({label})"
