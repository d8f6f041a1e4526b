"""Check images with boxes before training: what is broken, what is misleading, what is worth knowing.

Nothing on disk is changed. Every check is one function of the examined data set that yields findings; those
of single boxes are in ``checks``, those of class ids and class counts in ``class_checks``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator

import numpy as np

from vitrail.data.findings import MAX_LISTED, Finding, Verdict, number_of, sort_findings
from vitrail.data.image_checks import (
    HEAVY_IMBALANCE,
    MIN_PER_CLASS,
    find_conversions,
    find_missing_splits,
    find_odd_sizes,
    find_repeated_pixels,
    find_similar_names,
    find_unreadable,
    find_wrong_suffixes,
)
from vitrail.tasks.detection.dataset import BoxDataset
from vitrail.tasks.detection.faults import find_twins, order_corners
from vitrail.tasks.detection.fix import class_id_shift
from vitrail.tasks.detection.inspection import ExaminedBoxes, SeenImage, inspect_boxes

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
    found = [finding for judge in CHECKS for finding in judge(examined)]
    return Verdict(
        source=dataset.source,
        findings=sort_findings([*found, *dataset.findings]),
        counts=examined.counts,
        exclude=frozenset(examined.unreadable),
    )


def find_unmatched(examined: ExaminedBoxes) -> Iterator[Finding]:
    """Annotations without images, images without annotations, and images that are not used."""
    facts = examined.dataset.facts
    if facts.annotations_without_image:
        yield Finding(
            "warning",
            "annotations-without-image",
            f"{number_of(len(facts.annotations_without_image), 'annotation')} of images that are not there",
            "Left out; add the images, or remove the annotations",
            facts.annotations_without_image,
        )
    if facts.images_without_annotations:
        count = len(facts.images_without_annotations)
        yield Finding(
            "info",
            "images-without-annotation",
            f"{number_of(count, 'image')} without an annotation, kept as {_word(count)} without boxes",
            "Nothing, if nothing is on them; else annotate them: they teach that nothing is there",
            facts.images_without_annotations,
        )
    if facts.unlisted_images:
        yield Finding(
            "info",
            "unlisted-images",
            f"{number_of(len(facts.unlisted_images), 'image')} not used, since no list or annotation names "
            + ("it" if len(facts.unlisted_images) == 1 else "them"),
            "Nothing, if that is meant; else list them in a split",
            facts.unlisted_images,
        )


def find_empty_images(examined: ExaminedBoxes) -> Iterator[Finding]:
    """Images without boxes, which teach what is not an object; and a training split that has no box."""
    splits = examined.dataset.splits
    empty = [image for image in examined.images if not len(splits[image.split].labels[image.place])]
    if not examined.per_class["train"].any():
        yield Finding(
            "error",
            "no-training-boxes",
            "no training image has a usable box",
            "Annotate objects on training images, or check that the annotations belong to these images",
        )
    if empty:
        by_split = ", ".join(
            f"{name} {number}" for name in splits if (number := sum(image.split == name for image in empty))
        )
        yield Finding(
            "info",
            "images-without-boxes",
            f"{number_of(len(empty), 'image')} of {len(examined.images)} without a box ({by_split})",
            "Kept: they teach what is no object",
            tuple(image.name for image in empty),
        )


def find_wrong_sizes(examined: ExaminedBoxes) -> Iterator[Finding]:
    """Claimed sizes that are not those of the files, and boxes for pixels that Exif turns."""
    by_kind: dict[str, list[SeenImage]] = defaultdict(list)
    splits = examined.dataset.splits
    for image in examined.images:
        if image.frame.kind != "unclear-turn" or len(splits[image.split].labels[image.place]):
            by_kind[image.frame.kind].append(image)
    claimed = examined.dataset.facts.claimed_sizes

    def describe(images: list[SeenImage]) -> tuple[str, ...]:
        return tuple(
            f"{image.name}: {_size(claimed.get(image.name))} claimed, "
            f"{_size((image.inspection.height, image.inspection.width))} seen"
            for image in images
        )

    for kind, (check, said, remedy) in SIZE_FAULTS.items():
        if images := by_kind[kind]:
            message = f"{number_of(len(images), 'image')} {said}"
            yield Finding("warning", check, message, remedy, describe(images))


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
    splits = examined.dataset.splits

    def content(image: SeenImage) -> bytes:
        split = splits[image.split]
        labelled = np.column_stack((split.labels[image.place], split.boxes[image.place]))
        return labelled[np.lexsort(labelled.T)].tobytes()

    others = tuple(
        " = ".join(image.name for image in group)
        for group in repeated
        if len({content(image) for image in group}) > 1
    )
    if others:
        yield Finding(
            "warning",
            "conflicting-boxes",
            f"{number_of(len(others), 'picture')} more than once, with different boxes",
            "Keep the right boxes of each",
            others,
        )


def find_empty_test(examined: ExaminedBoxes) -> Iterator[Finding]:
    """No image to test on."""
    if not len(examined.dataset.test):
        yield Finding(
            "warning", "no-test", "there is no usable test image", "Give images to test on, or more images"
        )


def _word(count: int) -> str:
    return "an image" if count == 1 else "images"


def _size(size: tuple[int, int] | None) -> str:
    return "no size" if size is None else f"{size[1]} x {size[0]} px"


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


CHECKS: tuple[Callable[[ExaminedBoxes], Iterator[Finding]], ...] = (
    find_unreadable,
    find_wrong_formats,
    find_class_ids,
    find_empty_images,
    find_missing_classes,
    find_unmatched,
    find_wrong_sizes,
    find_impossible_boxes,
    find_edge_boxes,
    find_repeated_boxes,
    find_one_pixel_boxes,
    find_crowded_images,
    find_duplicates,
    find_similar_names,
    find_imbalance,
    find_missing_splits,
    find_empty_test,
    find_wrong_suffixes,
    find_conversions,
    find_odd_sizes,
)
