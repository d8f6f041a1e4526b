"""Check images with boxes before training: what is broken, what is misleading, what is worth knowing.

Nothing on disk is changed. Every check is one function of the examined data set that yields findings; those
of single boxes are in ``checks``, those of class ids and class counts in ``class_checks``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator

import numpy as np

from vitrail.data.findings import Finding, Verdict, number_of, sort_findings
from vitrail.data.split_checks import find_missing_splits, find_repeated_pixels
from vitrail.tasks.classification.class_checks import find_similar_names
from vitrail.tasks.classification.doctor import (
    find_conversions,
    find_odd_sizes,
    find_unreadable,
    find_wrong_suffixes,
)
from vitrail.tasks.detection.checks import (
    find_crowded_images,
    find_edge_boxes,
    find_impossible_boxes,
    find_one_pixel_boxes,
    find_repeated_boxes,
    find_wrong_formats,
)
from vitrail.tasks.detection.class_checks import find_class_ids, find_imbalance, find_missing_classes
from vitrail.tasks.detection.dataset import BoxDataset
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


def _word(count: int) -> str:
    return "an image" if count == 1 else "images"


def _size(size: tuple[int, int] | None) -> str:
    return "no size" if size is None else f"{size[1]} x {size[0]} px"
