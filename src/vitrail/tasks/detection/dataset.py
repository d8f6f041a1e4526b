"""The common type of detection data sets, whatever their file format."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Int64

from vitrail.data.dataset import DividedDataset, ImageSplit
from vitrail.data.findings import Finding
from vitrail.data.splits import SplitName

BoxFormat = str
"""The format of a source's boxes: a layout in pixels, or with ``_shares`` or ``_percent`` of the image's
width and height. Pascal VOC stores xyxy, COCO xywh, YOLO cxcywh_shares; see ``box_format``."""


@dataclass(eq=False)
class BoxSplit:
    """Images with labelled boxes."""

    images: Sequence[Any] | np.ndarray
    """``Path``, ``bytes`` or uint8 arrays ``height width [3]``; one uint8 array ``n height width [3]`` is
    such a sequence."""
    boxes: Sequence[np.ndarray]
    """Of each image, ``n 4``: left, top, right and bottom (xyxy) in pixels of the upright image, as
    annotated, neither clipped nor repaired, but finite; ``n`` may be 0. Normalised boxes of an image whose
    size cannot be read are zeros."""
    labels: Sequence[np.ndarray]
    """Of each image, the class index of each box."""
    names: Sequence[str]
    """Of each image in messages and reports, unique within its data set."""
    _: KW_ONLY
    sizes: Int64[np.ndarray, "images 2"] = field(default_factory=lambda: np.zeros((0, 2), dtype=np.int64))
    """Height and width of each upright image as annotated or in its header, unverified; 0 0 where neither can
    be read, and everywhere by default."""
    is_crowd: Sequence[np.ndarray] = ()
    """Of each image, whether each box stands for a group of objects; by default none does."""
    areas: Sequence[np.ndarray] = ()
    """Of each image, the annotated area of each object in pixels; 0 where there is none, and everywhere by
    default. No part of the fingerprint."""

    def __post_init__(self) -> None:
        self.content = ImageSplit(self.images, np.zeros(len(self.names), dtype=np.int64), self.names)
        """The images without their boxes."""
        self.names = self.content.names
        self.boxes = tuple(np.asarray(part, dtype=np.float32).reshape(-1, 4) for part in self.boxes)
        self.labels = tuple(np.asarray(part, dtype=np.int64).reshape(-1) for part in self.labels)
        none = tuple(np.zeros(len(part)) for part in self.labels)
        self.is_crowd = tuple(np.asarray(part, dtype=np.bool_).reshape(-1) for part in self.is_crowd or none)
        self.areas = tuple(self.areas or none)
        self.sizes = self.sizes if len(self.sizes) else np.zeros((len(self.names), 2), dtype=np.int64)
        assert len(self.sizes) == len(self.names), "images and sizes differ in number"
        for parts in (self.boxes, self.is_crowd, self.areas):
            assert list(map(len, parts)) == list(map(len, self.labels)), "boxes and labels differ in number"

    @property
    def contents(self) -> Sequence[Any] | np.ndarray:
        return self.images

    def __len__(self) -> int:
        return len(self.names)

    @property
    def num_boxes(self) -> int:
        return sum(map(len, self.labels))

    def take(self, indices: Iterable[int] | np.ndarray) -> BoxSplit:
        chosen = np.asarray(indices if isinstance(indices, np.ndarray) else list(indices), dtype=np.int64)
        content = self.content.take(chosen)
        names = ("boxes", "labels", "is_crowd", "areas")
        parts: dict[str, Any] = {name: [getattr(self, name)[index] for index in chosen] for name in names}
        return BoxSplit(images=content.images, names=content.names, sizes=self.sizes[chosen], **parts)

    @cached_property
    def fingerprint(self) -> str:
        """Sixteen hexadecimal digits that change with any box, label, name or pixel in memory.

        Of files, the size and the first 64 KiB are hashed.
        """
        digest = hashlib.blake2b(self.content.fingerprint.encode(), digest_size=8)
        for boxes, labels, is_crowd in zip(self.boxes, self.labels, self.is_crowd, strict=True):
            digest.update(f"{len(labels)}\n".encode())
            digest.update(boxes.tobytes() + labels.tobytes() + is_crowd.tobytes())
        return digest.hexdigest()


@dataclass(frozen=True)
class SourceFacts:
    """What a source says of itself, for the doctor to judge; readers make no findings of it.

    Readers report as findings whatever does not fit here (broken files, invalid numbers), and what comes
    beside boxes (difficult ones, polygons, keypoints). Which images Exif turns is found when they are
    decoded.
    """

    box_format: BoxFormat = "xyxy"
    """As its format or its columns claim."""
    claimed_sizes: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """By image name, the annotated height and width, unverified."""
    declared_class_ids: tuple[int, ...] = ()
    """Every class id with a name, ascending; empty if the classes have no ids."""
    boxes_by_class_id: Mapping[int, int] = field(default_factory=dict)
    """Number of boxes of each class id used, ascending, including ids without a name; see ``id_shift``."""
    unknown_boxes: Mapping[str, tuple[int | str, ...]] = field(default_factory=dict)
    """By image name, the class id of each box that is left out because that id has no name."""
    malformed_boxes: Mapping[str, int] = field(default_factory=dict)
    """By image name, the number of boxes left out because they are not a class and four finite numbers."""
    annotations_without_image: tuple[str, ...] = ()
    """Missing images that annotations refer to; their annotations are left out."""
    images_without_annotations: tuple[str, ...] = ()
    """Images of the splits without annotations, kept as images without boxes, as the format says."""
    unlisted_images: tuple[str, ...] = ()
    """Image files that are not used, since no annotation or list mentions them."""


@dataclass(frozen=True, kw_only=True)
class BoxDataset(DividedDataset[BoxSplit]):
    """A data set for detection."""

    class_names: tuple[str, ...]
    """In the order of the labels."""
    class_ids: tuple[int, ...]
    """Class ids in the source, in the order of the labels; 0, 1, ... if it has none."""
    facts: SourceFacts = field(default_factory=SourceFacts)


@dataclass(frozen=True)
class RawBoxes:
    """A data set as its source divides it, before missing splits are drawn."""

    class_names: tuple[str, ...]
    """In the order of the labels."""
    class_ids: tuple[int, ...]
    """Class ids in the source, in the same order."""
    splits: Mapping[SplitName, BoxSplit]
    """The source's splits, at least one."""
    findings: tuple[Finding, ...] = ()
    facts: SourceFacts = field(default_factory=SourceFacts)
