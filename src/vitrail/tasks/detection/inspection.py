"""Inspect every image of a detection data set once, and collect its boxes in one table.

Annotations may state a height and a width. If these are not those of the upright image, boxes may be meant
for the file as stored, before Exif turns it, or for a larger or smaller copy of the image.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int64

from vitrail.data.dataset import Progress
from vitrail.data.inspection import Inspection, SeenImages, inspect_splits
from vitrail.tasks.detection.box_format import MIN_BOXES, FormatJudgement, as_stored, judge_format
from vitrail.tasks.detection.dataset import BoxDataset
from vitrail.tasks.detection.faults import BoxFaults, find_faults

ROUNDING_PX = 1  # a claimed side that differs by so much was rounded
ASPECT_TOLERANCE = 0.02  # relative; a resized copy has the aspect of the original, up to rounding


class Frame(NamedTuple):
    """What the boxes of one image were drawn on."""

    kind: Literal["upright", "turned", "scaled", "unclear-turn", "unknown"]
    """``upright``: the image as displayed; ``turned``: the file as stored, which Exif turns; ``scaled``: the
    image at another size; ``unclear-turn``: upright or as stored, which the annotated size does not tell or
    is missing; ``unknown``: the annotated size is that of another picture."""
    size: tuple[int, int]
    """Its height and width if known, else those of the upright image."""


def frame_of(
    seen: Inspection, claimed: tuple[int, int] | None, boxes_xyxy: Float[np.ndarray, "n 4"]
) -> Frame:
    """Decide from the annotated height and width, None or a zero if missing, what boxes were drawn on."""
    upright = (seen.height, seen.width)
    stored = seen.stored_size
    is_turned = seen.orientation != 1
    if claimed is None or min(claimed) <= 0:
        return Frame("unclear-turn" if is_turned else "upright", upright)
    if is_turned and _is_near(claimed, stored):
        if stored == upright:  # square, or turned by half: both have the annotated size
            return Frame("unclear-turn", upright)
        if claimed != upright:
            return Frame("turned", stored)
    if _is_near(claimed, upright):
        return Frame("upright", upright)
    aspect = (claimed[1] / claimed[0]) / (upright[1] / upright[0])
    finite = boxes_xyxy[np.isfinite(boxes_xyxy).all(axis=1)]
    fits = (finite <= np.tile(claimed[::-1], 2) * (1 + ASPECT_TOLERANCE)).all()
    is_scaled = abs(aspect - 1) <= ASPECT_TOLERANCE and fits
    return Frame("scaled", claimed) if is_scaled else Frame("unknown", upright)


def to_upright(
    boxes_xyxy: Float[np.ndarray, "n 4"], frame: Frame, seen: Inspection
) -> Float[np.ndarray, "n 4"]:
    """Map boxes from what they were drawn on to the upright image, if the frame is known."""
    if frame.kind == "turned":
        return turn_boxes(boxes_xyxy, seen.orientation, frame.size)
    if frame.kind == "scaled":
        height, width = seen.height / frame.size[0], seen.width / frame.size[1]
        return boxes_xyxy * np.array([width, height, width, height], dtype=boxes_xyxy.dtype)
    return boxes_xyxy


def turn_boxes(
    boxes_xyxy: Float[np.ndarray, "n 4"], orientation: int, size: tuple[int, int]
) -> Float[np.ndarray, "n 4"]:
    """Turn boxes as an Exif orientation turns the pixels.

    Args:
        boxes_xyxy: on the pixels as stored.
        orientation: 1..8 (Exif 2.32, table 4).
        size: height and width of the pixels as stored.

    >>> turn_boxes(np.array([[0.0, 0.0, 2.0, 1.0]], dtype=np.float32), 6, (4, 7))
    array([[3., 0., 4., 2.]], dtype=float32)
    """
    height, width = size
    left, top, right, bottom = boxes_xyxy.T
    turned = {
        1: (left, top, right, bottom),
        2: (width - right, top, width - left, bottom),
        3: (width - right, height - bottom, width - left, height - top),
        4: (left, height - bottom, right, height - top),
        5: (top, left, bottom, right),
        6: (height - bottom, left, height - top, right),
        7: (height - bottom, width - right, height - top, width - left),
        8: (top, width - right, bottom, width - left),
    }[orientation]
    return np.stack(turned, axis=1)


def _is_near(size: tuple[int, int], other: tuple[int, int]) -> bool:
    return all(abs(a - b) <= ROUNDING_PX for a, b in zip(size, other, strict=True))


class SeenImage(NamedTuple):
    """A readable image."""

    name: str
    split: str
    position: int
    """Its index in that split."""
    inspection: Inspection
    frame: Frame
    """Which pixels its boxes were drawn on."""
    boxes_xyxy: Float[np.ndarray, "n 4"]
    """As annotated."""
    labels: Int64[np.ndarray, " n"]
    is_crowd: Bool[np.ndarray, " n"]
    """Whether each box stands for a group."""
    areas: Float[np.ndarray, " n"]
    """Of the objects as annotated; 0 where the source has none."""


class BoxTable(NamedTuple):
    """All boxes of the readable images, as columns."""

    image: Int64[np.ndarray, " n"]
    """Index of each box's image among the readable images."""
    split: np.ndarray
    """Name of its split."""
    number: Int64[np.ndarray, " n"]
    """Index of the box in its image."""
    boxes_xyxy: Float[np.ndarray, "n 4"]
    sizes: Int64[np.ndarray, "n 2"]
    """Height and width of what it was drawn on."""
    labels: Int64[np.ndarray, " n"]
    is_crowd: Bool[np.ndarray, " n"]


class ExaminedBoxes(SeenImages):
    """A detection data set with the inspection of each image and each box."""

    dataset: BoxDataset

    @property
    def things(self) -> str:
        return "boxes"

    @cached_property
    def images(self) -> list[SeenImage]:
        claimed, splits = self.dataset.facts.claimed_sizes, self.dataset.splits
        images = []
        for split_name, index, name, seen in self.rows():
            if not seen.error:
                split = splits[split_name]
                frame = frame_of(seen, claimed.get(name), split.boxes[index])
                columns = (split.boxes, split.labels, split.is_crowd, split.areas)
                boxes, labels, is_crowd, areas = (column[index] for column in columns)
                images.append(SeenImage(name, split_name, index, seen, frame, boxes, labels, is_crowd, areas))
        return _like_the_others(images)

    @cached_property
    def table(self) -> BoxTable:
        counts = [len(image.labels) for image in self.images]
        sizes = np.array([image.frame.size for image in self.images], dtype=np.int64).reshape(-1, 2)
        return BoxTable(
            image=np.repeat(np.arange(len(counts)), counts),
            split=np.repeat(np.array([image.split for image in self.images], dtype=object), counts),
            number=_join([np.arange(count) for count in counts], np.int64),
            boxes_xyxy=_join([image.boxes_xyxy for image in self.images], np.float32, (4,)),
            sizes=np.repeat(sizes, counts, axis=0),
            labels=_join([image.labels for image in self.images], np.int64),
            is_crowd=_join([image.is_crowd for image in self.images], np.bool_),
        )

    @cached_property
    def format(self) -> FormatJudgement:
        """The likely box format, by the sizes that images have, whatever the source claims."""
        unclear = sum(image.frame.kind in ("unclear-turn", "unknown") for image in self.images)
        may_be_turned = 2 * unclear > len(self.images)  # whose boxes lie inside with x and y exchanged
        table = self.table
        return judge_format(
            self.dataset, table.boxes_xyxy, table.sizes, table.split, y_first=not may_be_turned
        )

    @cached_property
    def faults_as_read(self) -> BoxFaults:
        """Faults of each box, whatever its format."""
        return find_faults(self.table.boxes_xyxy, self.table.sizes)

    @cached_property
    def misplaced(self) -> Bool[np.ndarray, " n"]:
        """True for each box that does not lie in its image as it was read."""
        return self.faults_as_read.outside | self.faults_as_read.beyond_edge

    @cached_property
    def is_misread(self) -> bool:
        """Whether boxes are in another format than they were read in, known or not."""
        return any(self.format) or bool(2 * self.misplaced.sum() > len(self.misplaced) >= MIN_BOXES)

    @cached_property
    def faults(self) -> BoxFaults:
        """Faults of each box; none if boxes were misread."""
        return BoxFaults(*(mask & (not self.is_misread) for mask in self.faults_as_read))

    @cached_property
    def is_sound(self) -> Bool[np.ndarray, " n"]:
        """True for each box that has an area in its image."""
        return ~(self.faults.not_finite | self.faults.empty | self.faults.outside)

    @cached_property
    def is_object(self) -> Bool[np.ndarray, " n"]:
        """True for each box that can be learned and found: sound, its corners in order, and no crowd."""
        return self.is_sound & ~self.faults.inverted & ~self.table.is_crowd

    @cached_property
    def emptied(self) -> dict[str, str]:
        """By name of each image that has annotated boxes and none to use, what they are.

        To test on, a crowd is of use, as predictions in it are not wrong.
        """
        facts, table = self.dataset.facts, self.table
        is_used = np.bincount(table.image, self.is_object, len(self.images)) > 0
        masks = {"around a group": table.is_crowd, **self.faults._asdict()}
        reasons = {}
        for index in np.flatnonzero(~is_used).tolist():
            image = self.images[index]
            of_image = slice(*np.searchsorted(table.image, [index, index + 1]))
            counts = {kind.replace("_", " "): int(mask[of_image].sum()) for kind, mask in masks.items()}
            counts["of no class with a name"] = len(facts.unknown_boxes.get(image.name, ()))
            counts["malformed"] = facts.malformed_boxes.get(image.name, 0)
            if any(counts.values()) and (image.split == "train" or not image.is_crowd.any()):
                reasons[image.name] = ", ".join(f"{count} {kind}" for kind, count in counts.items() if count)
        return reasons

    @cached_property
    def per_class(self) -> dict[str, np.ndarray]:
        split, labels = self.table.split, self.table.labels
        usable = {name: labels[(split == name) & self.is_object] for name in self.dataset.splits}
        return {name: np.bincount(labels, minlength=len(self.class_names)) for name, labels in usable.items()}

    @property
    def counts(self) -> dict[str, Any]:
        boxes = {name: split.num_boxes for name, split in self.dataset.splits.items()}
        return super().counts | {"boxes": boxes}

    def box_list(self, chosen: Bool[np.ndarray, " n"]) -> tuple[str, ...]:
        return tuple(self.name_box(index) for index in np.flatnonzero(chosen).tolist())

    def name_box(self, index: int) -> str:
        """Name one box of the table by image, number, class and its numbers in the source."""
        table, image = self.table, self.images[int(self.table.image[index])]
        size = self.dataset.splits[image.split].sizes[[image.position]]
        (stored,) = as_stored(table.boxes_xyxy[[index]], size, self.dataset.facts.box_format).tolist()
        numbers = ", ".join(f"{number:.6g}" for number in stored)
        label = self.class_names[int(table.labels[index])]
        return f"{image.name}: box {table.number[index]} ({label}) {numbers}"


def _like_the_others(images: list[SeenImage]) -> list[SeenImage]:
    """Take unclear turns for those of the other turned images, if these agree and are as many."""
    turned = [image.frame for image in images if image.inspection.orientation != 1]
    known = [frame.kind for frame in turned if frame.kind != "unclear-turn"]
    if len({*known}) != 1 or known[0] not in ("turned", "upright") or 2 * len(known) < len(turned):
        return images

    def settle(image: SeenImage) -> SeenImage:
        if image.frame.kind != "unclear-turn":
            return image
        size = image.inspection.stored_size if known[0] == "turned" else image.frame.size
        return image._replace(frame=Frame(known[0], size))

    return list(map(settle, images))


def inspect_boxes(dataset: BoxDataset, progress: Progress | None = None) -> ExaminedBoxes:
    """Inspect every image of every split."""
    contents = {name: split.content for name, split in dataset.splits.items()}
    return ExaminedBoxes(dataset, inspect_splits(contents, progress))


def _join(parts: list[np.ndarray], dtype: Any, shape: tuple[int, ...] = ()) -> np.ndarray:
    return np.concatenate([np.zeros((0, *shape), dtype=dtype), *parts]).astype(dtype, copy=False)
