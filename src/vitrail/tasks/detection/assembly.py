"""Assemble the annotations of single images, as files give them, into splits with boxes in pixels."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float32, Float64, Int64

from vitrail.core.boxes import cxcywh_to_xyxy, xywh_to_xyxy
from vitrail.data.dataset import order_class_names
from vitrail.data.file_places import ImageFinder, relative_name
from vitrail.data.findings import Finding
from vitrail.data.inspection import read_header_sizes
from vitrail.data.splits import SplitName
from vitrail.tasks.detection.dataset import BoxFormat, BoxSplit, RawBoxes, SourceFacts
from vitrail.tasks.detection.findings import finding

LARGEST = float(np.finfo(np.float32).max)
MAX_SIDE = 1 << 24  # pixels; no image has a side beyond, whatever a source claims


class AnnotatedBox(NamedTuple):
    """One box, as it stands in the source."""

    numbers: Sequence[float]
    """Four finite numbers."""
    key: int | str
    """Its class, by id or name."""
    is_crowd: bool = False
    """Whether it stands for a group."""
    area: float = 0.0
    """Of the object's outline, in pixels of the annotated size; 0 where the source has none."""


@dataclass
class AnnotatedImage:
    """One image with its annotations."""

    image: Any
    """A file or the bytes of one; None where the reading holds the images of the split."""
    name: str
    """Its display name; duplicates are numbered."""
    boxes: list[AnnotatedBox] = field(default_factory=list)
    claimed_size: tuple[int, int] | None = None
    """Height and width in the annotation."""
    num_malformed: int = 0
    """Boxes that are left out, since they are not a class and four finite numbers."""


@dataclass
class Reading:
    """What a reader has collected of a source, image by image."""

    root: Path = Path()
    """The folder that image names are relative to."""
    annotated: dict[SplitName, list[AnnotatedImage]] = field(default_factory=dict)
    images: dict[SplitName, Sequence[Any]] = field(default_factory=dict)
    """The images of a split, if its annotated images do not hold them."""
    without_image: list[str] = field(default_factory=list)
    """Annotations of images that are not there."""
    without_annotations: list[str] = field(default_factory=list)
    """Images without annotations, kept as images without boxes."""
    finders: list[ImageFinder] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    """Findings about anything but single items."""
    notes: dict[str, list[str]] = field(default_factory=dict)
    """Items by check of ``findings.toml``."""
    _sizes: dict[SplitName, Int64[np.ndarray, "images 2"]] = field(default_factory=dict)

    def note(self, check: str, item: str) -> None:
        self.notes.setdefault(check, []).append(item)

    def add_box(
        self, image: AnnotatedImage, numbers: Any, key: int | str | None, called: str, **facts: Any
    ) -> None:
        """Add a box, of numbers or their texts; note one without a class and four finite numbers."""
        is_box = isinstance(numbers, Sequence | np.ndarray) and not isinstance(numbers, str | bytes)
        numbers = [as_number(each) if isinstance(each, str) else each for each in numbers] if is_box else ()
        finite = finite_numbers(numbers) if len(numbers) == 4 else None
        if finite is None or key is None or key == "":
            self.note("malformed-boxes", called)
            image.num_malformed += 1
        else:
            image.boxes.append(AnnotatedBox(finite, key, **facts))

    def images_of(self, split: SplitName) -> Sequence[Any]:
        return self.images[split] if self.images else [entry.image for entry in self.annotated[split]]

    def sizes_of(self, split: SplitName) -> Int64[np.ndarray, "images 2"]:
        """Return the height and width of each image as annotated, else as in its header."""
        if split not in self._sizes:
            claimed = [entry.claimed_size or (0, 0) for entry in self.annotated[split]]
            sizes = np.array(claimed, dtype=np.int64).reshape(-1, 2)
            unclaimed = np.flatnonzero(sizes.min(axis=1) <= 0).tolist()
            sizes[unclaimed] = read_header_sizes(self.images_of(split), unclaimed)
            self._sizes[split] = sizes
        return self._sizes[split]

    def unlisted(self) -> tuple[str, ...]:
        """Return the images beside those of the annotations that no annotation mentions."""
        used = {entry.image for entries in self.annotated.values() for entry in entries}
        unlisted = dict.fromkeys(file for finder in self.finders for file in finder.unlisted())
        return tuple(relative_name(file, self.root) for file in unlisted if file not in used)


@dataclass(frozen=True)
class Classes:
    """The classes that a source declares."""

    names: tuple[str, ...]
    """Distinct names, in the order of the labels."""
    keys: tuple[int | str, ...]
    """What boxes call each of them: an id, or its name."""

    @classmethod
    def of_ids(cls, names: Mapping[int, str], reading: Reading) -> Classes:
        """Order classes by id, whatever the first and the gaps; number equal names."""
        ids = sorted(names)
        counts: Counter[str] = Counter()
        distinct = []
        for class_id in ids:
            name = names[class_id]
            counts[name] += 1
            if counts[name] > 1:
                reading.note("equal-class-names", f"{name} ({class_id})")
                name = f"{name} ({class_id})"
            distinct.append(name)
        return cls(tuple(distinct), tuple(ids))

    @classmethod
    def of_names(cls, names: Iterable[str]) -> Classes:
        ordered = order_class_names(names)
        return cls(ordered, ordered)

    @property
    def ids(self) -> tuple[int, ...]:
        """The ids in the source, ascending; empty if classes have none."""
        return tuple(key for key in self.keys if isinstance(key, int))


def finite_numbers(values: Sequence[Any]) -> list[float] | None:
    """Return values as finite numbers that float32 can hold, or None if one is not; text does not count."""
    numbers = []
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int | float | np.number):
            return None
        try:
            number = float(value)
        except OverflowError:
            return None
        if not math.isfinite(number) or abs(number) > LARGEST:
            return None
        numbers.append(number)
    return numbers


def as_number(text: str | None) -> float | None:
    """Parse a number; None if there is none."""
    try:
        return None if text is None else float(text)
    except ValueError:
        return None


def claimed_size(height: Any, width: Any) -> tuple[int, int] | None:
    """Return an annotated height and width, or None if it is not a valid size."""
    numbers = finite_numbers([height, width])
    if numbers is None or max(map(abs, numbers)) > MAX_SIDE:
        return None
    return int(numbers[0]), int(numbers[1])


def whole_number(value: Any) -> int | None:
    """Return a value as a whole number, or None if it is none; ``3.0`` and ``"3"`` are 3."""
    if isinstance(value, bool):
        return None
    try:
        number = int(value)
        return number if isinstance(value, str) or number == value else None
    except (TypeError, ValueError, OverflowError):
        return None


def id_shift(declared: Sequence[int], used: Collection[int]) -> int:
    """Return 1 or -1 if used ids count from one more or one less than declared ones, 0 if they agree.

    Ids are off by one if they skip the first declared one, use the one after the last and no other
    undeclared one; or the other way round. Few of many ids prove nothing.

    Args:
        declared: ids of classes or of images, ascending; there may be none.
        used: those of the boxes.

    >>> id_shift((0, 1, 2), (1, 2, 3)), id_shift((0, 1, 2), (0, 1, 3))
    (1, 0)
    """
    if not declared or 2 * len(used) < len(declared):
        return 0
    for step, unused, beyond in ((1, declared[0], declared[-1] + 1), (-1, declared[-1], declared[0] - 1)):
        if beyond in used and unused not in used and set(used) <= {number + step for number in declared}:
            return step
    return 0


def assemble(reading: Reading, classes: Classes, *, box_format: BoxFormat) -> RawBoxes:
    """Convert the boxes of all splits to pixels and labels.

    Boxes of undeclared classes are left out and counted in the facts, except where all ids are off by one:
    then boxes get the class that is meant. If an image has no annotated size, its header is read.
    """
    occurred: Counter[str] = Counter()
    boxes_by_id: Counter[int] = Counter()
    for entry in (entry for annotated in reading.annotated.values() for entry in annotated):
        boxes_by_id.update(box.key for box in entry.boxes if isinstance(box.key, int))
        occurred[entry.name] += 1
        if occurred[entry.name] > 1:  # an image may be listed twice, which the doctor reports
            entry.name = f"{entry.name} ({occurred[entry.name]})"
    shift = id_shift(classes.ids, boxes_by_id)
    label_of = {key + shift if isinstance(key, int) else key: i for i, key in enumerate(classes.keys)}
    unknown: dict[str, tuple[int | str, ...]] = {}
    malformed: dict[str, int] = {}
    claimed: dict[str, tuple[int, int]] = {}
    assembled: dict[SplitName, BoxSplit] = {}
    for split, annotated in reading.annotated.items():
        sizes = reading.sizes_of(split)
        for entry in annotated:
            if left_out := tuple(box.key for box in entry.boxes if box.key not in label_of):
                unknown[entry.name] = left_out
            if entry.num_malformed:
                malformed[entry.name] = entry.num_malformed
            if entry.claimed_size is not None:
                claimed[entry.name] = entry.claimed_size
        kept = [[box for box in entry.boxes if box.key in label_of] for entry in annotated]
        counts = [len(boxes) for boxes in kept]
        numbers = np.array([box.numbers for boxes in kept for box in boxes], dtype=np.float64)
        pixels = to_pixels(numbers.reshape(-1, 4), box_format, np.repeat(sizes, counts, axis=0))
        assembled[split] = BoxSplit(
            reading.images_of(split),
            np.split(pixels, np.cumsum(counts)[:-1]) if counts else [],
            [np.array([label_of[box.key] for box in boxes], dtype=np.int64) for boxes in kept],
            [entry.name for entry in annotated],
            sizes=sizes,
            is_crowd=[np.array([box.is_crowd for box in boxes], dtype=np.bool_) for boxes in kept],
            areas=[np.array([box.area for box in boxes], dtype=np.float64) for boxes in kept],
        )
    facts = SourceFacts(
        box_format=box_format,
        claimed_sizes=claimed,
        declared_class_ids=classes.ids,
        boxes_by_class_id=dict(sorted(boxes_by_id.items())),
        unknown_boxes=unknown,
        malformed_boxes=malformed,
        annotations_without_image=tuple(reading.without_image),
        images_without_annotations=tuple(reading.without_annotations),
        unlisted_images=reading.unlisted(),
    )
    noted = (finding(check, items) for check, items in reading.notes.items())
    class_ids = classes.ids or tuple(range(len(classes.names)))
    return RawBoxes(classes.names, class_ids, assembled, (*noted, *reading.findings), facts)


def to_pixels(
    numbers: Float64[np.ndarray, "boxes 4"], box_format: BoxFormat, sizes: Int64[np.ndarray, "boxes 2"]
) -> Float32[np.ndarray, "boxes 4"]:
    """Return boxes as xyxy in pixels; image sizes are read only for normalised boxes."""
    layout, _, unit = box_format.partition("_")
    boxes = torch.from_numpy(numbers)
    if layout.startswith("y"):
        boxes = boxes[:, [1, 0, 3, 2]]
    if layout in ("xywh", "yxhw"):
        boxes = xywh_to_xyxy(boxes)
    elif layout == "cxcywh":
        boxes = cxcywh_to_xyxy(boxes)
    pixels = boxes.numpy()
    if unit:
        pixels = pixels * sizes[:, [1, 0, 1, 0]] / {"shares": 1, "percent": 100}[unit]
    return np.clip(pixels, -LARGEST, LARGEST).astype(np.float32)
