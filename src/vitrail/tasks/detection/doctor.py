"""Check images with boxes before training: what is broken, what is misleading, what is worth knowing.

Nothing on disk is changed. Every check is one function of the examined data set that yields findings.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import islice, starmap

import numpy as np

from vitrail.data.dataset import Progress
from vitrail.data.findings import Finding, Verdict, joined, judge, number_of, some_of
from vitrail.data.image_checks import (
    find_conversions,
    find_missing_splits,
    find_odd_sizes,
    find_repeated,
    find_similar_names,
    find_uneven_classes,
    find_unreadable,
    find_wrong_suffixes,
)
from vitrail.tasks.detection.assembly import id_shift
from vitrail.tasks.detection.dataset import BoxDataset
from vitrail.tasks.detection.faults import find_twins, order_corners
from vitrail.tasks.detection.findings import finding, listed
from vitrail.tasks.detection.inspection import ExaminedBoxes, inspect_boxes

SCORED_BOXES = 100  # of an image, the best ones, that the COCO protocol counts
FAR_MORE = 10  # times the usual number of boxes in an image
SHOWN_IDS = 100  # of ids that no class has; there may be billions
FIRST_IDS = {"COCO": 1, "YOLO": 0}  # by format, as its own tools write them
SIZE_FAULTS = {
    "turned": "exif-rotation",
    "unclear-turn": "exif-unclear",
    "scaled": "scaled-boxes",
    "unknown": "size-mismatch",
}
"""Name of the check by kind of frame that is not the file's."""


def check_boxes(dataset: BoxDataset, progress: Progress | None = None) -> Verdict:
    """Check every image and box of every split; findings come errors first, with the images to leave out."""
    examined = inspect_boxes(dataset, progress)
    return judge(dataset, examined, CHECKS, exclude={*examined.unreadable, *examined.emptied})


def find_wrong_formats(examined: ExaminedBoxes) -> Iterator[Finding]:
    """Boxes whose numbers cannot be what the format claims and fit another one, or fit several."""
    suspicion, mixed = examined.format
    table = examined.table
    for each in mixed or filter(None, [suspicion]):
        cannot_lie = examined.misplaced | examined.faults_as_read.inverted
        chosen = cannot_lie & np.isin(table.split, each.splits) if mixed else table.image >= 0
        check = "mixed-formats" if mixed else "unclear-format" if each.is_unclear else "wrong-format"
        yield finding(check, examined.box_list(chosen), whose=each.whose, why=each.explain())
    if examined.is_misread and not any(examined.format):
        yield finding("unknown-format", examined.box_list(examined.misplaced))


def find_class_ids(examined: ExaminedBoxes) -> Iterator[Finding]:
    """Ids of boxes that no class has, that count from another number than the names, or leave some out."""
    facts = examined.dataset.facts
    declared, used = facts.declared_class_ids, facts.boxes_by_class_id
    if not declared:
        return
    first, last = declared[0], declared[-1]
    unknown = sorted(set(used) - set(declared))
    step = id_shift(declared, used)
    if step:
        yield finding(
            "class-ids-off-by-one",
            (f"id {class_id}: {number_of(used[class_id], 'box')}" for class_id in unknown),
            used=f"{min(used)} to {max(used)}",
            declared=f"{first} to {last}",
            first_used=first + step,
            first=first,
            correction="Subtract 1 from" if step > 0 else "Add 1 to",
        )
    elif unknown:
        images = [f"{name}: {number_of(len(ids), 'box')}" for name, ids in facts.unknown_boxes.items()]
        yield finding(
            "unknown-class-ids",
            images or map(str, unknown),
            boxes=number_of(sum(used[class_id] for class_id in unknown), "box"),
            ids=number_of(len(unknown), "class id"),
            some=some_of([*map(str, unknown)], len(unknown)),
            first=first,
            last=last,
        )
    gaps = (str(number) for number in range(first, last + 1) if number not in declared)
    missing, count = [*islice(gaps, SHOWN_IDS)], last - first + 1 - len(declared)
    spread = {"first": first, "last": last, "num_classes": len(declared), "count": count}
    yield from listed("class-ids-with-gaps", missing, some=some_of(missing, count), **spread)
    usual = FIRST_IDS.get(examined.dataset.format)
    if usual is not None and first != usual:
        yield finding("class-ids-start", first=first, usual=usual)


def find_empty_images(examined: ExaminedBoxes) -> Iterator[Finding]:
    """Images without boxes, which teach what is not an object; nothing to train or to test on."""
    if not len(examined.dataset.test):
        yield finding("no-test")
    if not examined.per_class["train"].any():
        yield finding("no-training-boxes")
    elif len(examined.dataset.test) and not examined.per_class["test"].any():
        yield finding("no-test-boxes")
    lost = (f"{name}: {reasons}" for name, reasons in examined.emptied.items())
    yield from listed("no-usable-box", lost)
    empty = [
        image for image in examined.images if not len(image.labels) and image.name not in examined.emptied
    ]
    numbers = {name: sum(image.split == name for image in empty) for name in examined.dataset.splits}
    by_split = ", ".join(f"{name} {number}" for name, number in numbers.items() if number)
    names = (image.name for image in empty)
    yield from listed("images-without-boxes", names, images=len(examined.images), by_split=by_split)


def find_missing_classes(examined: ExaminedBoxes) -> Iterator[Finding]:
    """Classes without a training box, or that no box of the test has."""
    train, test = examined.per_class["train"], examined.per_class["test"]
    others = test + examined.per_class["validation"]
    if not train.any():
        return
    yield from listed("class-not-in-train", examined.class_list((train == 0) & (others > 0)))
    yield from listed("class-without-boxes", examined.class_list((train == 0) & (others == 0)))
    if test.any():
        yield from listed("class-not-in-test", examined.class_list((train > 0) & (test == 0)))


def find_unmatched(examined: ExaminedBoxes) -> Iterator[Finding]:
    """Annotations without images, images without annotations, and images that are not used."""
    facts = examined.dataset.facts
    yield from listed("annotations-without-image", facts.annotations_without_image)
    yield from listed("images-without-annotation", facts.images_without_annotations)
    yield from listed("unlisted-images", facts.unlisted_images)


def find_wrong_sizes(examined: ExaminedBoxes) -> Iterator[Finding]:
    """Claimed sizes that are not those of the files, and boxes for pixels that Exif turns."""
    claimed = examined.dataset.facts.claimed_sizes
    by_kind: dict[str, list[str]] = defaultdict(list)
    for image in examined.images:
        if image.frame.kind != "unclear-turn" or len(image.labels):
            size = claimed.get(image.name)
            said = "no size" if size is None else f"{size[1]} x {size[0]} px"
            seen = f"{image.inspection.width} x {image.inspection.height} px"
            by_kind[image.frame.kind].append(f"{image.name}: {said} claimed, {seen} seen")
    for kind, check in SIZE_FAULTS.items():
        yield from listed(check, by_kind[kind])


def find_faulty_boxes(examined: ExaminedBoxes) -> Iterator[Finding]:
    """Boxes that no object can have, that pass the edge of their image, or that are one pixel wide."""
    for kind, mask in examined.faults._asdict().items():
        check = "zero-area" if kind == "empty" else kind.replace("_", "-")
        yield from listed(check, examined.box_list(mask))
    yield from listed("crowds", examined.box_list(examined.table.is_crowd))


def find_repeated_boxes(examined: ExaminedBoxes) -> Iterator[Finding]:
    """Boxes drawn twice, under the same class or under two."""
    table = examined.table
    usable = np.flatnonzero(examined.is_sound & ~table.is_crowd & (not examined.is_misread))
    starts = np.flatnonzero(np.diff(table.image[usable], prepend=-1))

    def describe(first: int, later: int) -> str:
        label = examined.class_names[int(table.labels[first])]
        return f"{examined.name_box(later)} = box {table.number[first]} ({label})"

    repeated, conflicting = [], []
    for members in np.split(usable, starts[1:]):
        ordered, labels = order_corners(table.boxes_xyxy[members]), table.labels[members]
        repeated += [describe(*members[[*pair]].tolist()) for pair in find_twins(ordered, labels)]
        conflicting += [
            describe(*members[[*pair]].tolist())
            for pair in find_twins(ordered, np.zeros_like(labels))
            if labels[pair[0]] != labels[pair[1]]
        ]
    yield from listed("repeated-boxes", repeated)
    yield from listed("two-classes", conflicting)


def find_crowded_images(examined: ExaminedBoxes) -> Iterator[Finding]:
    """Images with absurdly many boxes, or with more than the score counts."""
    counts = np.bincount(examined.table.image, minlength=len(examined.images))
    usual = float(np.median(counts[counts > 0])) if counts.any() else 0.0
    is_many = counts > SCORED_BOXES
    is_absurd = is_many & (counts > FAR_MORE * usual)

    def describe(chosen: np.ndarray) -> Iterator[str]:
        for index in np.flatnonzero(chosen):
            yield f"{examined.images[index].name}: {number_of(int(counts[index]), 'box')}"

    yield from listed("many-boxes", describe(is_absurd), times=FAR_MORE, usual=usual)
    most = counts.max(initial=0)
    yield from listed("crowded-images", describe(is_many & ~is_absurd), scored=SCORED_BOXES, most=most)


def find_duplicates(examined: ExaminedBoxes) -> Iterator[Finding]:
    """Images with equal pixels in two splits, or repeated for training, with the same boxes or others."""
    repeated = [group for group in examined.equal_images if len(group) > 1]
    yield from find_repeated(
        ([(split, name) for split, _, name in group] for group in repeated),
        remedy="a clean copy (--fix) leaves them out of the later split",
    )

    def content(split: str, index: int, name: str) -> bytes:
        boxes = examined.dataset.splits[split]
        labelled = np.column_stack((boxes.labels[index], boxes.boxes[index]))
        return labelled[np.lexsort(labelled.T)].tobytes()

    different = (group for group in repeated if len(set(starmap(content, group))) > 1)
    names = (joined([name for _, _, name in group]) for group in different)
    yield from listed("conflicting-boxes", names)


CHECKS: tuple[Callable[[ExaminedBoxes], Iterator[Finding]], ...] = (
    find_unreadable,
    find_wrong_formats,
    find_class_ids,
    find_empty_images,
    find_missing_classes,
    find_unmatched,
    find_wrong_sizes,
    find_faulty_boxes,
    find_repeated_boxes,
    find_crowded_images,
    find_duplicates,
    find_similar_names,
    find_uneven_classes,
    find_missing_splits,
    find_wrong_suffixes,
    find_conversions,
    find_odd_sizes,
)
