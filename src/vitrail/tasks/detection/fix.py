"""Write a clean copy of a detection data set as COCO JSON; the source is only read."""

from __future__ import annotations

import io
import itertools
import json
import math
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import torch
from PIL import Image

from vitrail import __version__
from vitrail.core.boxes import xyxy_to_xywh
from vitrail.core.durable import atomic_folder, write_durably
from vitrail.core.errors import DataError
from vitrail.core.files import expand, read_file
from vitrail.data.dataset import EncodedImage
from vitrail.data.findings import number_of, some_of
from vitrail.data.images import decode, open_image
from vitrail.data.inspection import Inspection
from vitrail.tasks.detection.assembly import id_shift
from vitrail.tasks.detection.box_format import reread_boxes
from vitrail.tasks.detection.dataset import BoxDataset
from vitrail.tasks.detection.doctor import find_wrong_formats
from vitrail.tasks.detection.faults import RepairedBoxes, repair_boxes
from vitrail.tasks.detection.findings import listed
from vitrail.tasks.detection.inspection import ExaminedBoxes, SeenImage, frame_of, inspect_boxes, to_upright

FOLDERS = {"train": "train", "validation": "val", "test": "test"}  # as COCO calls them
DECIMALS = 4  # of a pixel
FIRST_CLASS_ID = 1  # as in COCO itself
SUFFIXES = {"JPEG": ".jpg", "MPO": ".jpg", "PNG": ".png", "WEBP": ".webp", "BMP": ".bmp", "TIFF": ".tif"}
JPEG_QUALITY = 95  # of re-encoded images; above, files grow and pixels hardly change
CHANGES = {
    "unreadable": "{} left out: cannot be read",
    "copy": "{} left out: same pixels as in an earlier split",
    "emptied": "{} left out: no box of it can be used, and without any it would say that no object is there",
    "upright": "{} turned upright, as the Exif tag says",
    "unclear-turn": "{} whose boxes may be for the pixels as stored, which nothing tells: look at them",
    "resized": "{} given the size that the file has, where another one was claimed",
    "renumbered": "{} given the class that the id means: ids were off by one",
    "unknown-class": "{} dropped: a class id without a name",
    "malformed": "{} dropped: not a class and four finite numbers",
    "left-out": "{} left out with their images, which cannot be read or are copies",
    "reread": "{} read in the format that fits, not in the one that the source claims",
    "turned": "{} turned with the image",
    "scaled": "{} scaled to the size of the image",
    "swapped": "{} with swapped corners put in order",
    "clipped": "{} clipped to the image",
    "negative": "{} dropped: a negative width or height, which does not tell where the box begins",
    "not-finite": "{} dropped: a number that is infinite or NaN",
    "empty": "{} dropped: no width or no height",
    "outside": "{} dropped: outside the image",
    "duplicate": "{} dropped: drawn twice",
}
"""How each kind of change is reported; the first ones are of images, the others of boxes."""
Items = defaultdict[str, list[str]]
"""Names of images, or of boxes by their number, by kind of change."""
OF_IMAGES = ("unreadable", "copy", "emptied", "upright", "unclear-turn", "resized")


@dataclass(frozen=True)
class Fixed:
    """What a clean copy holds, and how it differs from its source."""

    folder: Path
    images: dict[str, int]
    boxes: dict[str, int]
    items: dict[str, list[str]]
    """What changed, by the kinds of ``CHANGES``: names of images, or of boxes by their number."""
    class_ids: dict[str, tuple[int, int]]
    """Classes with another id in the copy, by name: the id in the source and that in the copy."""
    num_read: tuple[int, int]
    """Images and boxes that were read."""
    notes: tuple[str, ...]
    """What was not, or not as it stands in the source."""

    @property
    def changes(self) -> dict[str, int]:
        """Number of images or boxes by kind of change; kinds that did not occur are absent."""
        return {kind: len(names) for kind, names in self.items.items()}

    def to_json(self) -> dict[str, Any]:
        return vars(self) | {"folder": str(self.folder), "changes": self.changes}

    def summary(self) -> list[str]:
        """Return a line for each kind of change, and one for the whole."""
        lines = [f"when it was read: {note}" for note in self.notes]
        for kind, count in self.changes.items():
            lines.append(CHANGES[kind].format(number_of(count, "image" if kind in OF_IMAGES else "box")))
        lines = lines or ["nothing had to be changed"]
        if self.class_ids:
            renamed = ", ".join(f"{name} {old} to {new}" for name, (old, new) in self.class_ids.items())
            lines.append(f"class ids of the copy count from {FIRST_CLASS_ID}: {renamed}")
        counts = zip(map(sum, (self.images.values(), self.boxes.values())), self.num_read, strict=True)
        images, boxes = (f"{kept:,} of {read:,}" if kept < read else f"{kept:,}" for kept, read in counts)
        return [*lines, f"clean copy: {self.folder} ({images} images, {boxes} boxes)"]


def write_clean(dataset: BoxDataset, folder: Path) -> Fixed:
    """Write a clean copy of a data set as COCO JSON, repaired where that needs no guess.

    Images are copied as they are, except those that Exif turns, which are stored upright. Boxes are brought
    to the upright image, ordered, clipped, and dropped if they have no area or are duplicates; areas in the
    source are kept, but never above that of the box. Images that lose every box, or whose pixels occur in an
    earlier split, are left out. Class ids go from 1 on without gaps; where those of the boxes are off by one
    from those of the names, they are corrected. Masks and keypoints of the source are not copied.

    Args:
        dataset: what ``open_boxes`` returned.
        folder: the destination, missing or empty. It is complete or not there.

    Raises:
        DataError: the folder is not empty or lies in the source, formats are mixed, or no image is left.
        CheckpointError: the disk is full or not writable.
    """
    folder = expand(folder)
    refuse_folder(folder, dataset.source)
    items: Items = defaultdict(list)
    examined = inspect_boxes(dataset)
    for fault in find_wrong_formats(examined):
        if fault.check != "wrong-format":
            raise DataError(
                f"{dataset.source}: {fault.message}",
                expected="boxes of one format, within their images",
                remedy=fault.remedy,
            )
    for split, index, name, seen in examined.rows():
        if seen.error:
            items["unreadable"].append(name)
            items["left-out"] += [name] * len(dataset.splits[split].labels[index])
    kept = list(_mended(examined, items))
    if not kept:
        raise DataError(
            f"no image of {dataset.source} is left",
            expected="at least one image that can be read, with a usable box or none at all",
            remedy="Look at what 'vitrail check' says of them",
        )
    categories = [{"id": id_, "name": name} for id_, name in enumerate(dataset.class_names, FIRST_CLASS_ID)]
    info = {"description": f"clean copy of {Path(dataset.source).name} by vitrail {__version__}"}
    parts: dict[str, dict[str, Any]] = {}
    taken: dict[str, set[str]] = defaultdict(set)
    with atomic_folder(folder) as staged:
        for image, repaired in kept:
            part = parts.setdefault(
                image.split, {"info": info, "images": [], "annotations": [], "categories": categories}
            )
            source = dataset.splits[image.split].images[image.position]
            name, content = copy_of(source, image.name, image.inspection)
            name = free_name(name, taken[image.split])
            taken[image.split].add(name.casefold())
            into = staged / FOLDERS[image.split]
            into.mkdir(exist_ok=True)
            write_durably(into / name, content)
            if image.inspection.orientation != 1:
                items["upright"].append(image.name)
            _annotate(part, name, image, repaired)
        (staged / "annotations").mkdir()
        for split, part in parts.items():
            path = staged / "annotations" / f"instances_{FOLDERS[split]}.json"
            write_durably(path, json.dumps(part))
    numbered = enumerate(zip(dataset.class_names, dataset.class_ids, strict=True), start=FIRST_CLASS_ID)
    has_ids = bool(dataset.facts.declared_class_ids)
    absent = listed("annotations-without-image", dataset.facts.annotations_without_image)
    notes = (note for note in (*dataset.findings, *absent) if note.severity == "warning")
    told = (note for note in notes if note.check != "malformed-boxes")  # these are counted themselves
    splits = dataset.splits.values()
    return Fixed(
        folder,
        {split: len(part["images"]) for split, part in parts.items()},
        {split: len(part["annotations"]) for split, part in parts.items()},
        {kind: items[kind] for kind in CHANGES if items[kind]},
        {name: (old, new) for new, (name, old) in numbered if has_ids and old != new},
        (sum(map(len, splits)), sum(split.num_boxes for split in splits)),
        tuple(f"{note.message}: {some_of(note.items, note.count)}" for note in told),
    )


def refuse_folder(folder: Path, source: str) -> None:
    """Refuse a folder that is not empty, or lies in the source; nothing is read."""
    folder = expand(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise DataError(
            f"{folder} exists and is not empty",
            expected="a new or an empty folder for the clean copy",
            remedy="Choose another name; nothing there is ever overwritten",
        )
    target, root = folder.resolve(), expand(source).resolve()
    if root.exists() and (target == root or root in target.parents):
        raise DataError(
            f"{folder} lies in the data set itself",
            expected="a folder outside of it: the source is never changed",
            remedy=f"Choose a folder beside {root}",
        )


def _mended(examined: ExaminedBoxes, items: Items) -> Iterator[tuple[SeenImage, RepairedBoxes]]:
    """Yield the images to keep with their repaired boxes; note changes."""
    dataset, facts, suspicion = examined.dataset, examined.dataset.facts, examined.format.suspicion
    shift = id_shift(facts.declared_class_ids, facts.boxes_by_class_id)
    first_split: dict[bytes, str] = {}
    for image in examined.images:  # train, validation, test
        seen, frame, boxes = image.inspection, image.frame, image.boxes_xyxy
        numbers: dict[str, Sequence[int]] = {"renumbered": range(len(boxes)) if shift else ()}
        if suspicion is not None:
            size_read = dataset.splits[image.split].sizes[image.position]
            boxes = reread_boxes(boxes, np.repeat(size_read[None], len(boxes), axis=0), suspicion)
            if frame.kind in ("scaled", "unknown"):  # which the boxes decide
                frame = frame_of(seen, facts.claimed_sizes.get(image.name), boxes)
            numbers["reread"] = range(len(boxes))
        if frame.kind in ("turned", "scaled"):
            boxes = to_upright(boxes, frame, seen)
            numbers[frame.kind] = range(len(boxes))
        has_corners = (suspicion.likely if suspicion else facts.box_format)[:4] not in ("xywh", "yxhw")
        size = (seen.height, seen.width)
        repaired = repair_boxes(boxes, image.labels, image.is_crowd, size, swap=has_corners)
        numbers |= repaired.changes
        changes = {kind: [f"{image.name}: box {n}" for n in each] for kind, each in numbers.items()}
        unknown = facts.unknown_boxes.get(image.name, ())
        changes["unknown-class"] = [f"{image.name}: a box of class id {key}" for key in unknown]
        changes["malformed"] = [image.name] * facts.malformed_boxes.get(image.name, 0)
        changes["resized"] = [image.name] if frame.kind == "unknown" else []
        changes["unclear-turn"] = [image.name] if frame.kind == "unclear-turn" and len(boxes) else []
        has_boxes = len(image.labels) or unknown or changes["malformed"]
        if has_boxes and not len(repaired.kept):
            changes["emptied"] = [image.name]
        elif first_split.setdefault(seen.pixel_hash, image.split) != image.split:
            changes = {"copy": [image.name], "left-out": [image.name] * len(boxes)}
        else:
            yield image._replace(frame=frame), repaired
        for kind, names in changes.items():
            items[kind] += names


def _annotate(part: Mapping[str, Any], name: str, image: SeenImage, repaired: RepairedBoxes) -> None:
    boxes_xywh = xyxy_to_xywh(torch.from_numpy(repaired.boxes_xyxy)).tolist()
    image_id, seen = len(part["images"]) + 1, image.inspection
    part["images"].append({"id": image_id, "file_name": name, "width": seen.width, "height": seen.height})
    areas = image.areas * (seen.width * seen.height / math.prod(image.frame.size))
    for number, box in zip(repaired.kept.tolist(), boxes_xywh, strict=True):
        rounded = [round(value, DECIMALS) for value in box]
        box_area = rounded[2] * rounded[3]
        part["annotations"].append(
            {
                "id": len(part["annotations"]) + 1,
                "image_id": image_id,
                "category_id": FIRST_CLASS_ID + int(image.labels[number]),
                "bbox": rounded,
                "area": round(min(areas[number] or box_area, box_area), DECIMALS),
                "iscrowd": int(image.is_crowd[number]),
            }
        )


def copy_of(source: EncodedImage, name: str, seen: Inspection) -> tuple[str, bytes]:
    """Return file name and content of a copy: the bytes as they are, or the pixels if not stored upright."""
    given = PurePosixPath(source.name if isinstance(source, Path) else name.replace("\\", "/"))
    stem = given.stem if given.suffix.lower() in Image.registered_extensions() else given.name
    with open_image(source, name=name) as image:
        kind = image.format or ""
        suffix = SUFFIXES.get(kind, f".{kind.lower()}")
        if isinstance(source, Path) and not seen.other_format and given.suffix:
            suffix = given.suffix
        if seen.orientation == 1 and not isinstance(source, np.ndarray):
            content = read_file(source) if isinstance(source, Path) else source
        else:
            is_jpeg, encoded = kind in ("JPEG", "MPO"), io.BytesIO()
            suffix, options = (
                (".jpg", {"quality": JPEG_QUALITY, "subsampling": 0}) if is_jpeg else (".png", {})
            )
            profile = image.info.get("icc_profile") if image.mode == "RGB" else None
            decode(image).save(encoded, "JPEG" if is_jpeg else "PNG", icc_profile=profile, **options)
            content = encoded.getvalue()
    return (stem.lstrip(".") or "image") + suffix, content


def free_name(name: str, taken: Collection[str]) -> str:
    """Number a name if it is taken; ``taken`` is case-folded, as some file systems compare names.

    >>> free_name("a.jpg", {"a.jpg", "a-2.jpg"})
    'a-3.jpg'
    """
    path = PurePosixPath(name)
    numbered = (f"{path.stem}-{number}{path.suffix}" for number in itertools.count(2))
    return next(each for each in itertools.chain([name], numbered) if each.casefold() not in taken)
