"""Check images with boxes before training: what is broken, what is misleading, what is worth knowing.

Nothing on disk is changed. Every check is one function of the examined data set that yields findings.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator

import numpy as np

from vitrail.data.findings import MAX_LISTED, Finding, Severity, Verdict, counted, judge, number_of
from vitrail.data.image_checks import (
    find_conversions,
    find_missing_splits,
    find_odd_sizes,
    find_repeated_pixels,
    find_similar_names,
    find_uneven_classes,
    find_unreadable,
    find_wrong_suffixes,
)
from vitrail.tasks.detection.dataset import BoxDataset
from vitrail.tasks.detection.faults import find_twins, order_corners
from vitrail.tasks.detection.fix import class_id_shift
from vitrail.tasks.detection.inspection import ExaminedBoxes, SeenImage, inspect_boxes

SCORED_BOXES = 100  # of an image, the best ones, that the COCO protocol counts
FAR_MORE = 10  # times the usual number of boxes in an image
FIRST_IDS = {"COCO": 1, "YOLO": 0}  # by format, as its own tools write them
SIZE_FAULTS = {
    "turned": (
        "exif-rotation",
        "turned by an Exif tag, with boxes for the unturned pixels",
        "The boxes are in the wrong place on the upright image; a clean copy (--fix) has them turned",
    ),
    "unclear-turn": (
        "exif-unclear",
        "turned by an Exif tag, perhaps without their boxes",
        "The boxes are taken to be for the upright image; look whether they are, and save it upright",
    ),
    "scaled": (
        "scaled-boxes",
        "annotated at another size than the file has",
        "The boxes are in the wrong place; a clean copy (--fix) has them scaled to the file",
    ),
    "unknown": (
        "size-mismatch",
        "of another size than the annotation says",
        "The boxes are used as they are; look whether they belong to these images",
    ),
}
"""By kind of frame that is not the file's: name of the check, message, remedy."""


def check_boxes(dataset: BoxDataset, *, progress: Callable[[int, int], None] | None = None) -> Verdict:
    """Check every image and box of every split; findings come errors first, with the images to leave out."""
    examined = inspect_boxes(dataset, progress)
    return judge(dataset, examined, CHECKS, exclude=examined.unreadable)


def find_wrong_formats(examined: ExaminedBoxes) -> Iterator[Finding]:
    """Boxes whose numbers cannot be what the format claims and fit another one; splits of several formats."""

    def report(check: str, message: str, remedy: str, splits: Collection[str]) -> Finding:
        chosen = np.array([image.split in splits for image in examined.images], dtype=bool)
        indices = np.flatnonzero(chosen[examined.table.image])
        named = tuple(map(examined.name_box, indices[:MAX_LISTED].tolist()))
        return Finding("error", check, message, remedy, named, len(indices))

    suspicion, contradictions = examined.format
    if suspicion is not None and not contradictions:
        message = f"the boxes are not what the source claims: {suspicion.explain()}"
        remedy = "Correct the program that wrote them; a clean copy (--fix) has them read the likely way"
        yield report("wrong-format", message, remedy, examined.dataset.splits.keys())
    for split, contradiction in contradictions.items():
        message = f"the boxes of the {split} split have another format: {contradiction.explain()}"
        remedy = "Write all splits in one format; no clean copy (--fix) is made of several"
        yield report("mixed-formats", message, remedy, (split,))


def find_class_ids(examined: ExaminedBoxes) -> Iterator[Finding]:
    """Ids of boxes that no class has, that count from another number than the names, or leave some out."""
    facts = examined.dataset.facts
    declared, used = facts.declared_class_ids, facts.boxes_by_class_id
    if not declared:
        return
    first, last = declared[0], declared[-1]
    unknown = sorted(set(used) - set(declared))
    step = class_id_shift(declared, tuple(used))
    if step:
        yield Finding(
            "error",
            "class-ids-off-by-one",
            f"boxes have class ids {min(used)} to {max(used)}, names {first} to {last}: "
            f"the boxes count from {first + step} where the names count from {first}",
            f"Every box is of the wrong class. {'Subtract' if step > 0 else 'Add'} 1 "
            f"{'from' if step > 0 else 'to'} the ids of the boxes, as a clean copy (--fix) does",
            tuple(f"id {class_id}: {number_of(used[class_id], 'box')}" for class_id in unknown),
        )
    elif unknown:
        images = (f"{name}: {number_of(n, 'box')}" for name, n in facts.boxes_of_unknown_class.items())
        yield Finding(
            "warning",
            "unknown-class-ids",
            f"{number_of(sum(used[class_id] for class_id in unknown), 'box')} of "
            f"{number_of(len(unknown), 'class id')} without a name: {_some(unknown)}",
            f"Left out; name these classes, or correct the ids, which have names from {first} to {last}",
            tuple(images) or tuple(map(str, unknown)),
        )
    missing = sorted(set(range(first, last + 1)) - set(declared))
    if missing:
        yield Finding(
            "info",
            "class-ids-with-gaps",
            f"class ids go from {first} to {last} and leave out {_some(missing)}",
            f"Nothing to do: the {len(declared)} classes are numbered without gaps here",
            tuple(map(str, missing)),
        )
    usual = FIRST_IDS.get(examined.dataset.format)
    if usual is not None and first != usual:
        yield Finding(
            "info",
            "class-ids-start",
            f"class ids start at {first}, where {usual} is usual for such files",
            "Nothing to do: names and boxes agree. Other programs may expect the usual one",
        )


def find_empty_images(examined: ExaminedBoxes) -> Iterator[Finding]:
    """Images without boxes, which teach what is not an object; and a training split that has no box."""
    empty = [image for image in examined.images if not len(image.labels)]
    if not examined.per_class["train"].any():
        yield Finding(
            "error",
            "no-training-boxes",
            "no training image has a usable box",
            "Annotate objects on training images, or check that the annotations belong to these images",
        )
    by_split = ", ".join(
        f"{name} {number}"
        for name in examined.dataset.splits
        if (number := sum(image.split == name for image in empty))
    )
    yield from counted(
        (image.name for image in empty),
        "info",
        "images-without-boxes",
        "image",
        f"of {len(examined.images)} without a box ({by_split})",
        "Kept: they teach what is not an object",
    )


def find_missing_classes(examined: ExaminedBoxes) -> Iterator[Finding]:
    """Classes without a training box, or that no box of the test has."""
    train, test = examined.per_class["train"], examined.per_class["test"]
    others = test + examined.per_class["validation"]
    if not train.any():
        return
    for mask, check, text, remedy in (
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
    ):
        yield from counted(examined.class_list(mask), "warning", check, "class", text, remedy)


def find_unmatched(examined: ExaminedBoxes) -> Iterator[Finding]:
    """Annotations without images, images without annotations, and images that are not used."""
    facts = examined.dataset.facts
    yield from counted(
        facts.annotations_without_image,
        "warning",
        "annotations-without-image",
        "annotation",
        "of images that are not there",
        "Left out; add the images, or remove the annotations",
    )
    is_one = len(facts.images_without_annotations) == 1
    yield from counted(
        facts.images_without_annotations,
        "info",
        "images-without-annotation",
        "image",
        f"without an annotation, kept as {'an image' if is_one else 'images'} without boxes",
        "Nothing, if nothing is on them; else annotate them: they teach that nothing is there",
    )
    yield from counted(
        facts.unlisted_images,
        "info",
        "unlisted-images",
        "image",
        f"not used, since no list or annotation names {'it' if len(facts.unlisted_images) == 1 else 'them'}",
        "Nothing, if that is meant; else list them in a split",
    )


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
    for kind, (check, text, remedy) in SIZE_FAULTS.items():
        yield from counted(by_kind[kind], "warning", check, "image", text, remedy)


def find_faulty_boxes(examined: ExaminedBoxes) -> Iterator[Finding]:
    """Boxes that no object can have, or that pass the edge of their image."""
    faults, left_out = examined.faults, "Left out in training and of a clean copy (--fix)"
    rows: tuple[tuple[Severity, str, np.ndarray, str, str], ...] = (
        ("warning", "not-finite", faults.not_finite, "with a number that is infinite or NaN", left_out),
        ("warning", "zero-area", faults.empty, "without width or height", left_out),
        (
            "warning",
            "inverted",
            faults.inverted,
            "with right before left, or bottom above top",
            "Left out in training; a clean copy (--fix) has the corners swapped",
        ),
        ("warning", "outside", faults.outside, "with nothing of it in the image", left_out),
        (
            "warning",
            "beyond-edge",
            faults.beyond_edge,
            "partly outside the image",
            "Clipped in training and in a clean copy (--fix); look whether it belongs to the image",
        ),
        (
            "info",
            "at-edge",
            faults.at_edge,
            "over the edge by no more than rounding",
            "Nothing to do: clipped in training and in a clean copy (--fix)",
        ),
    )
    for severity, check, mask, text, remedy in rows:
        yield from counted(examined.box_list(mask), severity, check, "box", text, remedy)


def find_repeated_boxes(examined: ExaminedBoxes) -> Iterator[Finding]:
    """Boxes drawn twice, under the same class or under two."""
    table = examined.table
    usable = np.flatnonzero(examined.is_sound & ~table.is_crowd & examined.is_judged)
    starts = np.flatnonzero(np.diff(table.image[usable], prepend=-1))

    def describe(first: int, later: int) -> str:
        label = examined.class_names[int(table.labels[first])]
        return f"{examined.name_box(later)} = box {table.number[first]} ({label})"

    repeated, conflicting = [], []
    for members in np.split(usable, starts[1:]):
        ordered, labels = order_corners(table.boxes_xyxy[members]), table.labels[members]
        twins = find_twins(ordered)
        for label in np.unique(labels) if twins else ():
            of_label = members[labels == label].tolist()
            pairs = find_twins(ordered[labels == label])
            repeated += [describe(of_label[first], of_label[later]) for first, later in pairs]
        conflicting += [
            describe(int(members[first]), int(members[later]))
            for first, later in twins
            if labels[first] != labels[later]
        ]
    yield from counted(
        repeated,
        "warning",
        "repeated-boxes",
        "box",
        "drawn twice: same class, same place",
        "Each second one counts as missed; a clean copy (--fix) keeps the first of each",
    )
    yield from counted(
        conflicting,
        "warning",
        "two-classes",
        "box",
        "in the same place as one of another class",
        "Keep the right class of each, unless objects of both are there",
    )


def find_one_pixel_boxes(examined: ExaminedBoxes) -> Iterator[Finding]:
    """Boxes that are one pixel wide or high."""
    yield from counted(
        examined.box_list(examined.faults.one_pixel),
        "warning",
        "one-pixel",
        "box",
        "of one pixel or less in width or height",
        "Used like others; remove what came from a slip of the mouse",
    )


def find_crowded_images(examined: ExaminedBoxes) -> Iterator[Finding]:
    """Images with absurdly many boxes, or with more than the score counts."""
    counts = np.bincount(examined.table.image, minlength=len(examined.images))
    usual = float(np.median(counts[counts > 0])) if counts.any() else 0.0
    is_many = counts > SCORED_BOXES
    is_absurd = is_many & (counts > FAR_MORE * usual)

    def describe(chosen: np.ndarray) -> Iterator[str]:
        for index in np.flatnonzero(chosen):
            yield f"{examined.images[index].name}: {number_of(int(counts[index]), 'box')}"

    yield from counted(
        describe(is_absurd),
        "warning",
        "many-boxes",
        "image",
        f"with over {FAR_MORE} times the usual {usual:.0f} boxes",
        "Look at them; such heaps come from annotations that were joined or written twice",
    )
    yield from counted(
        describe(is_many & ~is_absurd),
        "info",
        "crowded-images",
        "image",
        f"with more than {SCORED_BOXES} boxes, up to {counts.max(initial=0)}",
        f"Raise model.num_queries to predict as many; the COCO score counts {SCORED_BOXES}",
    )


def find_duplicates(examined: ExaminedBoxes) -> Iterator[Finding]:
    """Images with equal pixels in two splits, or repeated for training, with the same boxes or others."""
    groups: dict[bytes, list[SeenImage]] = defaultdict(list)
    for image in examined.images:
        groups[image.inspection.pixel_hash].append(image)
    repeated = [group for group in groups.values() if len(group) > 1]
    yield from find_repeated_pixels(
        ([(image.split, image.name) for image in group] for group in repeated),
        remedy="a clean copy (--fix) leaves them out of the later split",
    )

    def content(image: SeenImage) -> bytes:
        labelled = np.column_stack((image.labels, image.boxes_xyxy))
        return labelled[np.lexsort(labelled.T)].tobytes()

    yield from counted(
        (
            " = ".join(image.name for image in group)
            for group in repeated
            if len(set(map(content, group))) > 1
        ),
        "warning",
        "conflicting-boxes",
        "picture",
        "more than once, with different boxes",
        "Keep the right boxes of each",
    )


def find_empty_test(examined: ExaminedBoxes) -> Iterator[Finding]:
    """No image to test on."""
    if not len(examined.dataset.test):
        yield Finding(
            "warning", "no-test", "there is no usable test image", "Give images to test on, or more images"
        )


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
    find_one_pixel_boxes,
    find_crowded_images,
    find_duplicates,
    find_similar_names,
    find_uneven_classes,
    find_missing_splits,
    find_empty_test,
    find_wrong_suffixes,
    find_conversions,
    find_odd_sizes,
)


def _some(ids: list[int]) -> str:
    shown = ", ".join(map(str, ids[:10]))
    return f"{shown} and {len(ids) - 10} more" if len(ids) > 10 else shown
