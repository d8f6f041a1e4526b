"""Checks of classes: ids that are off by one or have gaps, classes without boxes, and their balance."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from vitrail.data.findings import Finding, number_of
from vitrail.tasks.classification.class_checks import HEAVY_IMBALANCE, MIN_PER_CLASS
from vitrail.tasks.detection.inspection import ExaminedBoxes
from vitrail.tasks.detection.renumbering import class_id_shift

FIRST_IDS = {"COCO": 1, "YOLO": 0}  # by format, as its own tools write them


def find_class_ids(examined: ExaminedBoxes) -> Iterator[Finding]:
    """Ids of boxes that no class has, that count from another number than the names, or leave some out."""
    facts = examined.dataset.facts
    declared, used = facts.declared_class_ids, facts.boxes_by_class_id
    if not declared:
        return
    unknown = sorted(set(used) - set(declared))
    step = class_id_shift(declared, tuple(used))
    if step:
        yield Finding(
            "error",
            "class-ids-off-by-one",
            f"boxes have class ids {min(used)} to {max(used)}, names {declared[0]} to {declared[-1]}: "
            f"the boxes count from {declared[0] + step} where the names count from {declared[0]}",
            f"Every box is of the wrong class. {'Subtract' if step > 0 else 'Add'} 1 "
            f"{'from' if step > 0 else 'to'} the ids of the boxes, as a clean copy (--fix) does",
            tuple(f"id {class_id}: {number_of(used[class_id], 'box', 'boxes')}" for class_id in unknown),
        )
    elif unknown:
        images = tuple(
            f"{name}: {number_of(count, 'box', 'boxes')}"
            for name, count in facts.boxes_of_unknown_class.items()
        )
        yield Finding(
            "warning",
            "unknown-class-ids",
            f"{number_of(sum(used[class_id] for class_id in unknown), 'box', 'boxes')} of "
            f"{number_of(len(unknown), 'class id')} without a name: {_some(unknown)}",
            f"Left out; name these classes, or correct the ids, which have names from {declared[0]} "
            f"to {declared[-1]}",
            images or tuple(map(str, unknown)),
        )
    missing = sorted(set(range(declared[0], declared[-1] + 1)) - set(declared))
    if missing:
        yield Finding(
            "info",
            "class-ids-with-gaps",
            f"class ids go from {declared[0]} to {declared[-1]} and leave out {_some(missing)}",
            f"Nothing to do: the {len(declared)} classes are numbered without gaps here",
            tuple(map(str, missing)),
        )
    usual = FIRST_IDS.get(examined.dataset.format)
    if usual is not None and declared[0] != usual:
        yield Finding(
            "info",
            "class-ids-start",
            f"class ids start at {declared[0]}, where {usual} is usual for such files",
            "Nothing to do: names and boxes agree. Other programs may expect the usual one",
        )


def find_missing_classes(examined: ExaminedBoxes) -> Iterator[Finding]:
    """Classes without a training box, or that no box of the test has."""
    train, test = examined.per_class["train"], examined.per_class["test"]
    others = test + examined.per_class["validation"]
    if not train.any():
        return
    told = (
        (
            (train == 0) & (others > 0),
            "class-not-in-train",
            "to be found without a box in training",
            "The model cannot learn them; annotate some, or move images to the training split",
        ),
        (
            (train == 0) & (others == 0),
            "class-without-boxes",
            "without any usable box",
            "The model has an output for each that it never learns; remove the class, or annotate some",
        ),
        (
            (train > 0) & (test == 0) & bool(test.any()),
            "class-not-in-test",
            "without a test box",
            "The score says nothing about them; annotate some on test images",
        ),
    )
    for mask, check, text, remedy in told:
        if mask.any():
            names = examined.class_list(mask)
            message = f"{number_of(len(names), 'class', 'classes')} {text}"
            yield Finding("warning", check, message, remedy, names)


def find_imbalance(examined: ExaminedBoxes) -> Iterator[Finding]:
    """Classes with few training boxes, and a largest one many times as large as the smallest."""
    train = examined.per_class["train"]
    small = (train > 0) & (train < MIN_PER_CLASS)
    names = examined.class_names
    if small.any():
        yield Finding(
            "warning",
            "small-classes",
            f"{number_of(int(small.sum()), 'class', 'classes')} with under {MIN_PER_CLASS} training boxes",
            "Annotate more, or start from pretrained weights",
            tuple(f"{names[index]} ({train[index]})" for index in np.flatnonzero(small)),
        )
    present = np.flatnonzero(train)
    if len(present) < 2:
        return
    largest, smallest = present[train[present].argmax()], present[train[present].argmin()]
    if train[largest] >= HEAVY_IMBALANCE * train[smallest]:
        yield Finding(
            "warning",
            "imbalance",
            f"the largest class has {train[largest] / train[smallest]:.0f} times the boxes of the smallest",
            "Read the scores per class; annotate more of the small ones if they matter",
            (f"{names[largest]} ({train[largest]})", f"{names[smallest]} ({train[smallest]})"),
        )


def _some(ids: list[int]) -> str:
    shown = ", ".join(map(str, ids[:10]))
    return f"{shown} and {len(ids) - 10} more" if len(ids) > 10 else shown
