"""Assemble the annotations of single images, as files give them, into splits with boxes in pixels."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float32, Float64, Int64

from vitrail.core.boxes import cxcywh_to_xyxy, xywh_to_xyxy
from vitrail.data.dataset import order_class_names
from vitrail.data.file_places import ImageFinder, relative_name
from vitrail.data.findings import Finding, Severity
from vitrail.data.inspection import read_header_sizes
from vitrail.data.splits import SplitName
from vitrail.tasks.detection.dataset import BoxFormat, BoxSplit, RawBoxes, SourceFacts, UnknownBoxes

KINDS: dict[str, tuple[Severity, str, str]] = {
    "unreadable-annotations": (
        "warning",
        "{count} annotation files cannot be read, and their images are left out",
        "Correct or remove these files: an image without its boxes would teach that nothing is there",
    ),
    "malformed-boxes": (
        "warning",
        "{count} boxes are not a class and four finite numbers, and are left out",
        "Correct or remove them",
    ),
    "malformed-entries": (
        "warning",
        "{count} entries of images or annotations lack what they need, and are left out",
        "Correct or remove them",
    ),
    "repeated-image-ids": (
        "warning",
        "{count} image ids are given to several images; the first image of each is used",
        "Give every image an id of its own",
    ),
    "equal-class-names": (
        "warning",
        "{count} classes have the name of another class; they are told apart by their ids",
        "Rename one of each, or give both one id if they are the same class",
    ),
    "class-count": (
        "warning",
        "the number of classes that is announced is not that of the names; the names are used",
        "Correct nc or names",
    ),
    "missing-splits": (
        "warning",
        "{count} splits that are announced have no images there",
        "Correct the paths, or remove these lines",
    ),
    "missing-images": (
        "warning",
        "{count} rows have no image, or one that is not there, and are left out",
        "Put the images there, or remove the rows",
    ),
    "unnamed-classes": (
        "warning",
        "{count} classes have numbers and no names; the numbers are used as names",
        "Save the data with a ClassLabel feature, or write names instead of numbers",
    ),
    "unlabelled-folders": (
        "warning",
        "{count} folders of images have no label file at all and are not used",
        "Put the labels into labels/ beside images/",
    ),
    "moved-paths": (
        "info",
        "{count} folders of images are not where the file says, and are found beside it",
        "Nothing, if the data was moved together",
    ),
    "listed-without-annotations": (
        "warning",
        "{count} listed images have no file of annotations, and are left out",
        "Annotate them; where nothing is there, write a file without objects",
    ),
    "polygons": (
        "info",
        "{count} label files hold polygons; the box around each is used",
        "Nothing, if boxes are what you want",
    ),
    "keypoints": ("info", "{count} label files hold key points, which are not used", "Nothing"),
    "confidences": (
        "warning",
        "{count} label files have a sixth number in a line, which is not used",
        "Make sure that these are annotations: detectors write a sixth number, their confidence",
    ),
    "other-file-names": (
        "info",
        "{count} annotation files name another image than the one with their own name, which is used",
        "Nothing, if the files were renamed together",
    ),
    "difficult": (
        "info",
        "{count} images have boxes marked as difficult; they are used like all others",
        "Nothing; the protocol of Pascal VOC leaves them out of the score",
    ),
    "other-annotations": (
        "info",
        "{count} annotation files have no list of annotations and are not used",
        "Nothing",
    ),
    "unread-splits": (
        "warning",
        "{count} files or folders with annotations belong to no known split and are not used",
        "Name them train, val or test",
    ),
    "class-lists-differ": (
        "info",
        "{count} classes are declared in some of the splits only",
        "Nothing, if their boxes are meant to be of one data set",
    ),
}
"""Severity, message and remedy of each kind of note."""


class Notes:
    """Collect items by kind, each of ``KINDS``."""

    def __init__(self) -> None:
        self._items: dict[str, list[str]] = {}
        self._others: list[Finding] = []

    def add(self, kind: str, item: str) -> None:
        assert kind in KINDS, kind
        self._items.setdefault(kind, []).append(item)

    def add_finding(self, finding: Finding) -> None:
        """Note a finding of no kind."""
        self._others.append(finding)

    def of(self, kind: str) -> Sequence[str]:
        return self._items.get(kind, ())

    def findings(self) -> tuple[Finding, ...]:
        findings = []
        for kind, items in self._items.items():
            severity, message, remedy = KINDS[kind]
            findings.append(Finding(severity, kind, message.format(count=len(items)), remedy, tuple(items)))
        return (*findings, *self._others)


LARGEST = float(np.finfo(np.float32).max)
MAX_SIDE = 1 << 24  # pixels; no image has a side beyond, whatever a source claims


@dataclass
class AnnotatedImage:
    """One image with its annotations."""

    image: Any
    """A file or the bytes of one; None where ``assemble`` is given the images separately."""
    name: str
    """Its display name; duplicates are numbered."""
    boxes: list[Sequence[float]] = field(default_factory=list)
    """The four finite numbers of each box, as they stand in the source."""
    classes: list[int | str] = field(default_factory=list)
    """The class of each box, by id or name."""
    is_crowd: list[bool] = field(default_factory=list)
    """Whether each box stands for a group."""
    is_difficult: list[bool] = field(default_factory=list)
    claimed_size: tuple[int, int] | None = None
    """Height and width in the annotation."""
    header_size: tuple[int, int] | None = None
    """Height and width in the image header, if it has been read already."""

    def add(
        self, box: Sequence[float], key: int | str, *, is_crowd: bool = False, is_difficult: bool = False
    ) -> None:
        self.boxes.append(box)
        self.classes.append(key)
        self.is_crowd.append(is_crowd)
        self.is_difficult.append(is_difficult)

    def take(self, chosen: Sequence[int]) -> AnnotatedImage:
        """Return the image with some of its boxes."""
        return replace(
            self,
            boxes=[self.boxes[index] for index in chosen],
            classes=[self.classes[index] for index in chosen],
            is_crowd=[self.is_crowd[index] for index in chosen],
            is_difficult=[self.is_difficult[index] for index in chosen],
        )


@dataclass
class Reading:
    """What a reader has collected of a source, image by image."""

    root: Path
    """The folder that image names are relative to."""
    notes: Notes = field(default_factory=Notes)
    images: dict[SplitName, list[AnnotatedImage]] = field(default_factory=dict)
    without_image: list[str] = field(default_factory=list)
    """Annotations of images that are not there."""
    finders: list[ImageFinder] = field(default_factory=list)

    def facts(self) -> SourceFacts:
        used = {image.image for images in self.images.values() for image in images}
        unlisted = dict.fromkeys(file for finder in self.finders for file in finder.unlisted())
        return SourceFacts(
            annotations_without_image=tuple(self.without_image),
            unlisted_images=tuple(relative_name(file, self.root) for file in unlisted if file not in used),
        )


@dataclass(frozen=True)
class Classes:
    """The classes that a source declares."""

    names: tuple[str, ...]
    """Distinct names, in the order of the labels."""
    keys: tuple[int | str, ...]
    """What boxes call each of them: an id, or its name."""

    @classmethod
    def of_ids(cls, names: Mapping[int, str], notes: Notes) -> Classes:
        """Order classes by id, whatever the first and the gaps; number equal names."""
        ids = sorted(names)
        counts: Counter[str] = Counter()
        distinct = []
        for class_id in ids:
            name = names[class_id]
            counts[name] += 1
            if counts[name] > 1:
                notes.add("equal-class-names", f"{name} ({class_id})")
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


def assemble(
    splits: Mapping[SplitName, Sequence[AnnotatedImage]],
    classes: Classes,
    *,
    box_format: BoxFormat,
    notes: Notes,
    facts: SourceFacts | None = None,
    images: Mapping[SplitName, Sequence[Any]] | None = None,
) -> RawBoxes:
    """Convert the boxes of all splits to pixels and labels.

    Boxes of undeclared classes are left out and counted in the facts. If an image has no annotated size, its
    header is read.

    Args:
        images: the images themselves by split, if ``splits`` does not hold them.
    """
    _number_equal_names(splits)
    label_of = {key: label for label, key in enumerate(classes.keys)}
    boxes_by_id: Counter[int] = Counter()
    unknown: dict[str, UnknownBoxes] = {}
    difficult: dict[str, tuple[int, ...]] = {}
    assembled: dict[SplitName, BoxSplit] = {}
    for split, annotated in splits.items():
        content = images[split] if images is not None else [entry.image for entry in annotated]
        sizes = sizes_of(content, annotated)
        kept = []
        for entry, size in zip(annotated, sizes, strict=True):
            named = entry
            boxes_by_id.update(key for key in entry.classes if isinstance(key, int))
            left_out = [index for index, key in enumerate(entry.classes) if key not in label_of]
            if left_out:
                without_name = entry.take(left_out)
                (pixels,) = _pixels_of([without_name], size[None], box_format)
                is_crowd = np.array(without_name.is_crowd, dtype=np.bool_)
                unknown[entry.name] = UnknownBoxes(pixels, tuple(without_name.classes), is_crowd)
                named = entry.take([index for index, key in enumerate(entry.classes) if key in label_of])
            if any(named.is_difficult):
                notes.add("difficult", entry.name)
                difficult[entry.name] = tuple(np.flatnonzero(named.is_difficult).tolist())
            kept.append(named)
        assembled[split] = BoxSplit(
            content,
            _pixels_of(kept, sizes, box_format),
            [np.array([label_of[key] for key in entry.classes], dtype=np.int64) for entry in kept],
            [entry.name for entry in kept],
            sizes=sizes,
            is_crowd=[np.array(entry.is_crowd, dtype=np.bool_) for entry in kept],
        )
    claimed = {
        entry.name: entry.claimed_size
        for annotated in splits.values()
        for entry in annotated
        if entry.claimed_size is not None
    }
    facts = replace(
        facts or SourceFacts(),
        box_format=box_format,
        claimed_sizes=claimed,
        declared_class_ids=classes.ids,
        boxes_by_class_id=dict(sorted(boxes_by_id.items())),
        unknown_boxes=unknown,
        difficult=difficult,
    )
    class_ids = classes.ids or tuple(range(len(classes.names)))
    return RawBoxes(classes.names, class_ids, assembled, notes.findings(), facts)


def to_pixels(
    numbers: Float64[np.ndarray, "boxes 4"], box_format: BoxFormat, sizes: Int64[np.ndarray, "boxes 2"]
) -> Float32[np.ndarray, "boxes 4"]:
    """Return boxes as xyxy in pixels; image sizes are read only for normalised boxes."""
    boxes = torch.from_numpy(numbers)
    if box_format.startswith("xywh"):
        boxes = xywh_to_xyxy(boxes)
    elif box_format.startswith("cxcywh"):
        boxes = cxcywh_to_xyxy(boxes)
    pixels = boxes.numpy()
    if box_format.endswith("shares"):
        pixels = pixels * sizes[:, [1, 0, 1, 0]]
    return np.clip(pixels, -LARGEST, LARGEST).astype(np.float32)


def sizes_of(images: Sequence[Any], annotated: Sequence[AnnotatedImage]) -> Int64[np.ndarray, "images 2"]:
    """Return the height and width of each image as annotated, else as in its header."""
    sizes = np.zeros((len(annotated), 2), dtype=np.int64)
    unclaimed = []
    for index, entry in enumerate(annotated):
        if entry.claimed_size is not None and min(entry.claimed_size) > 0:
            sizes[index] = entry.claimed_size
        elif entry.header_size is not None:
            sizes[index] = entry.header_size
        else:
            unclaimed.append(index)
    if unclaimed:
        sizes[unclaimed] = read_header_sizes(_Chosen(images, unclaimed))
    return sizes


class _Chosen(Sequence[Any]):
    def __init__(self, images: Sequence[Any], indices: Sequence[int]) -> None:
        self._images, self._indices = images, indices

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, index: Any) -> Any:
        return self._images[self._indices[index]]


def _number_equal_names(splits: Mapping[SplitName, Sequence[AnnotatedImage]]) -> None:
    """Make names unique: an image may be listed twice, which the doctor reports."""
    counts: Counter[str] = Counter()
    for annotated in splits.values():
        for entry in annotated:
            counts[entry.name] += 1
            if counts[entry.name] > 1:
                entry.name = f"{entry.name} ({counts[entry.name]})"


def _pixels_of(
    annotated: Sequence[AnnotatedImage], sizes: Int64[np.ndarray, "images 2"], box_format: BoxFormat
) -> list[Float32[np.ndarray, "_ 4"]]:
    counts = [len(entry.boxes) for entry in annotated]
    numbers = [box for entry in annotated for box in entry.boxes]
    together = np.array(numbers, dtype=np.float64).reshape(-1, 4)
    pixels = to_pixels(together, box_format, np.repeat(sizes, counts, axis=0))
    return np.split(pixels, np.cumsum(counts)[:-1]) if counts else []
