"""COCO instances JSON: files with ``images``, ``annotations`` and ``categories``, and their images.

The format: https://cocodataset.org/#format-data, sections 1 and 2. A bounding box (``bbox``) is x, y, width
and height in pixels; outlines (``segmentation``) are read where there is no box, keypoints are not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.core.errors import DataError, reading
from vitrail.core.files import parse_json, read_file
from vitrail.data.file_places import (
    ImageFinder,
    existing,
    first_entries,
    is_image_name,
    looks_like_coco,
    nested,
    relative_name,
    split_folders,
    start_of,
)
from vitrail.data.findings import number_of
from vitrail.data.formats import Format
from vitrail.data.splits import SPLITS, SplitName, split_of
from vitrail.data.text.lines import decode_text
from vitrail.tasks.detection.assembly import (
    AnnotatedImage,
    Classes,
    Reading,
    assemble,
    claimed_size,
    finite_numbers,
    id_shift,
    whole_number,
)
from vitrail.tasks.detection.dataset import RawBoxes
from vitrail.tasks.detection.findings import finding

COMPARED_OUTLINES = 5000  # of a file, with their boxes; all of COCO's would take half a minute
KEYS = ("images", "annotations", "categories")
EXPECTED = 'a JSON object with the lists "images", "annotations" and "categories", as COCO has it'


def load_coco(path: Path) -> dict[str, list[Any]]:
    """Read a file and check its outer form; one without an ``annotations`` key is left without it."""

    def faulty(given: str, remedy: str) -> DataError:
        return DataError(f"{path} {given}", expected=EXPECTED, remedy=remedy)

    with reading(path, expected=EXPECTED, remedy="Write or download the file again", error=DataError):
        content = parse_json(decode_text(read_file(path)))
    if not isinstance(content, Mapping):
        listed = "a list, as files of predictions are" if isinstance(content, list) else repr(content)[:60]
        raise faulty(f"holds {listed}", "Give the file of annotations")
    lists: dict[str, Any] = {"annotations": []} | {key: content[key] for key in KEYS if key in content}
    absent = [key for key in KEYS if not isinstance(lists.get(key), list)]
    if absent:
        keys = ", ".join(map(repr, content)) or "none"
        given = f"has no list {' and '.join(map(repr, absent))}, its keys are {keys}"
        raise faulty(given, "Export the annotations as COCO instances again, or rename the keys")
    return {key: content[key] for key in KEYS if key in content}


def read_coco(
    path: Path,
    content: Mapping[str, list[Any]],
    finder: ImageFinder,
    reading: Reading,
    id_of_class: Mapping[str, int],
) -> list[AnnotatedImage]:
    """Join the annotations of one file to its images, and return those that exist, in the file's order."""
    images: dict[str, AnnotatedImage] = {}
    absent: dict[str, str] = {}
    named: dict[str, str] = {}
    repeated: dict[str, str] = {}
    for position, entry in enumerate(content["images"]):
        key = _key(entry.get("id")) if isinstance(entry, Mapping) else None
        file_name = entry.get("file_name") if isinstance(entry, Mapping) else None
        if key is None or not isinstance(file_name, str):
            reading.note("malformed-entries", f"{path.name}: image {position}")
        elif named.setdefault(key, file_name) != file_name:
            repeated[key] = f"{path.name}: image id {key} ({named[key]}, {file_name})"
        elif (file := finder.find(file_name) or finder.find_stem(Path(file_name).stem)) is None:
            absent[key] = file_name
        else:
            if file.name != Path(file_name.replace("\\", "/")).name:
                reading.note("other-suffixes", f"{file_name} ({file.name})")
            size = claimed_size(entry.get("height"), entry.get("width"))
            images[key] = AnnotatedImage(file, relative_name(file, reading.root), claimed_size=size)
    for key, called in repeated.items():
        images.pop(key, None)
        absent[key] = called
    _check_image_ids(path, named, content.get("annotations", []))
    id_of_name = {name: key for key, name in named.items()}
    num_lost = dict.fromkeys(absent.values(), 0)
    for position, entry in enumerate(content.get("annotations", [])):
        where = f"{path.name}: annotation {position}"
        if not isinstance(entry, Mapping):
            reading.note("malformed-entries", where)
            continue
        key = _key(entry.get("image_id"))
        if key not in named and key in id_of_name:
            reading.note("names-for-ids", f"{where} (image_id {key!r:.60})")
            key = id_of_name[key]
        if key is None:
            reading.note("malformed-entries", f"{where} (image_id {entry.get('image_id')!r:.40})")
        elif key in images:
            box, category, crowd = (entry.get(name) for name in ("bbox", "category_id", "iscrowd"))
            is_compared = not box or position < COMPARED_OUTLINES
            around = _box_around(entry.get("segmentation")) if is_compared else None
            if around is not None and not box:
                reading.note("outlines", f"{where}, {images[key].name}")
                box = around
            elif around is not None and not _holds_middle(box, around):
                reading.note("outlines-elsewhere", f"{where}, {images[key].name}")
            others = [name for name in ("segmentation", "keypoints") if not box and entry.get(name)]
            unread = f", {' and '.join(others)} not read" if others else ""
            called = f"{where}, {images[key].name} (bbox {box!r:.60}, category_id {category!r:.40}{unread})"
            class_id = whole_number(category)
            if class_id is None and (class_id := id_of_class.get(str(category))) is not None:
                reading.note("names-for-ids", f"{where} (category_id {category!r:.40})")
            is_crowd = whole_number(crowd or 0) == 1 or crowd is True
            (area,) = finite_numbers([entry.get("area")]) or (0.0,)
            reading.add_box(images[key], box, class_id, called, is_crowd=is_crowd, area=max(area, 0.0))
        else:
            lost = absent.get(key, f"{path.name}: image_id {key}")
            num_lost[lost] = num_lost.get(lost, 0) + 1
    for lost, count in num_lost.items():
        item = f"{lost}: {number_of(count, 'box')}"
        if lost in repeated.values():
            reading.note("repeated-image-ids", item)
        else:
            reading.without_image.append(item)
    return list(images.values())


def _check_image_ids(path: Path, ids: Iterable[str], annotations: Sequence[Any]) -> None:
    """Refuse annotations that count images from another number: every box would be on the wrong image."""
    declared = sorted(number for number in map(whole_number, ids) if number is not None)
    given = (whole_number(entry.get("image_id")) for entry in annotations if isinstance(entry, Mapping))
    used = {number for number in given if number is not None}
    if step := id_shift(declared, used):
        raise DataError(
            f"{path} has the image ids {declared[0]} to {declared[-1]}, its annotations {min(used)} to "
            f"{max(used)}: they count from {declared[0] + step} where the images count from {declared[0]}",
            expected="annotations with the ids of their images",
            remedy=f"{'Subtract 1 from' if step > 0 else 'Add 1 to'} each image_id; if an image was removed, "
            "remove its annotations instead",
        )


def _box_around(outline: Any) -> list[float] | None:
    """Return x, y, width and height of the box around polygons, or None if there is no polygon."""
    polygons = outline if isinstance(outline, list) and outline else [None]
    points = [finite_numbers(each) if isinstance(each, list) else None for each in polygons]
    if any(each is None or not each or len(each) % 2 for each in points):
        return None
    together = np.array([number for each in points for number in each or ()]).reshape(-1, 2)
    first, last = together.min(axis=0), together.max(axis=0)
    return [*first.tolist(), *(last - first).tolist()]


def _holds_middle(box: Any, around: Sequence[float]) -> bool:
    """Whether a box holds the middle of another, its last numbers being a size or a corner."""
    numbers = finite_numbers(box) if isinstance(box, list) and len(box) == 4 else None
    sides = zip(numbers[:2], numbers[2:], around[:2], around[2:], strict=True) if numbers else ()
    return all(low <= first + length / 2 <= low + side for low, side, first, length in sides)


def _add_category_names(path: Path, entries: list[Any], names: dict[int, str]) -> None:
    """Add the categories of a file to those of the files before it."""

    def faulty(given: str, expected: str, remedy: str = "Correct the list of categories") -> DataError:
        return DataError(f"{path} {given}", expected=expected, remedy=remedy)

    own: dict[int, str] = {}
    for entry in entries:
        class_id = whole_number(entry.get("id")) if isinstance(entry, Mapping) else None
        name = str(entry.get("name") or "").strip() if isinstance(entry, Mapping) else ""
        if class_id is None or not name:
            expected = 'a whole number as "id" and a text as "name"'
            raise faulty(f"has the category {entry!r:.80}", expected)
        if own.setdefault(class_id, name) != name:
            given = f"gives the id {class_id} to the categories {own[class_id]!r} and {name!r}"
            raise faulty(given, "an id of its own for each category")
        if names.setdefault(class_id, name) != name:
            given = (
                f"gives the id {class_id} to the category {name!r}, and another file to {names[class_id]!r}"
            )
            expected = "the same categories in the files of all splits"
            raise faulty(given, expected, "Export the splits together, so that their ids agree")
    if not own:
        raise faulty("has an empty list of categories", 'at least one category with "id" and "name"')


def _group_names(entries: list[Mapping[str, Any]]) -> set[str]:
    """Return the categories that stand for others, as Roboflow adds one: above them is "none"."""
    above = {str(entry.get("supercategory")) for entry in entries}
    return {str(entry["name"]) for entry in entries if entry.get("supercategory") == "none"} & above


def _key(value: Any) -> str | None:
    """Normalise an image id to text, so that 7 and "7" are one; None if it is neither."""
    return str(value) if isinstance(value, int | str) and not isinstance(value, bool) else None


ROBOFLOW_NAME = "_annotations.coco.json"
MAX_FILES = 200  # tools that write one file per image exceed it
INSTANCES = "instances_"  # COCO's own files of boxes; captions and keypoints lie beside them


def recognises(path: Path) -> bool:
    """Accept a file with COCO's keys, or a folder that has such files in it, in annotations/ or in splits."""
    if path.is_file():
        return path.suffix.lower() == ".json" and looks_like_coco(path)
    return path.is_dir() and any(_candidates(root) for root in nested(path))


def read(path: Path) -> RawBoxes:
    """Read a file, or those of the splits in a folder.

    Raises:
        DataError: a file is damaged or incomplete, two files are of one split, or no image is there.
    """
    files: dict[SplitName, Path] = {split_of(path.stem) or "train": path}
    unread: list[Path] = []
    folder = path.parent
    if path.is_dir():
        folder = next(folder for folder in nested(path) if _candidates(folder))
        files, unread = _assign_splits(folder)
    if folder.resolve().name.lower() == "annotations":  # the folder of annotations alone was named
        folder = folder.resolve().parent if folder.name in ("", "..") else folder.parent
    reading = Reading(folder)
    for file in unread:
        reading.note("unread-splits", relative_name(file, reading.root))
    names: dict[int, str] = {}
    groups: set[str] = set()
    for split, file in files.items():
        content = load_coco(file)
        if "annotations" not in content and len(files) > 1:  # such as image_info_test2017.json
            reading.note("other-annotations", relative_name(file, reading.root))
            continue
        # a file that was named itself may lie beside the images, as that of detections does
        bounds = [folder.parent] if path.is_file() else []
        finder = ImageFinder(_image_folders(reading.root, file, split), bounds)
        reading.finders.append(finder)
        _add_category_names(file, content["categories"], names)
        groups |= _group_names(content["categories"])
        id_of_class = {name: class_id for class_id, name in names.items()}
        reading.annotated[split] = read_coco(file, content, finder, reading, id_of_class)
        if content["images"] and not reading.annotated[split]:
            raise _no_images(file, content["images"], reading)
    if not reading.annotated:
        raise DataError(
            f"{', '.join(map(str, files.values()))} have no annotations",
            expected="a box for at least one image",
            remedy="Give the files of annotations, instances_*.json",
        )
    used = {box.key for images in reading.annotated.values() for image in images for box in image.boxes}
    for class_id in [each for each, name in names.items() if name in groups and each not in used]:
        name = names.pop(class_id)
        reading.findings.append(finding("group-class", [name], name=name))
    return assemble(reading, Classes.of_ids(names, reading), box_format="xywh")


def _assign_splits(root: Path) -> tuple[dict[SplitName, Path], list[Path]]:
    """Assign the files in a folder to splits; also return those of no known split."""
    files: dict[SplitName, Path] = {}
    unread: list[Path] = []
    candidates = _candidates(root)
    for file in candidates:
        of_folder = split_of(file.parent.name) if file.parent != root else None
        split = split_of(file.stem) or of_folder or ("train" if len(candidates) == 1 else None)
        if split is None:
            unread.append(file)
        elif split in files:
            raise DataError(
                f"{files[split]} and {file} are both of the {split} split",
                expected="one file of annotations for each split",
                remedy="Move one of them away, or give the path of the file that you mean",
            )
        else:
            files[split] = file
    if not files:
        raise DataError(
            f"{root} holds {number_of(len(unread), 'annotation file')} and none is named by its split: "
            + ", ".join(file.name for file in unread[:5]),
            expected="train, val or test in their names, or one file alone",
            remedy="Rename them, or give the path of the file that you mean",
        )
    return {split: files[split] for split in SPLITS if split in files}, unread


def _candidates(root: Path) -> list[Path]:
    folders = existing([root, root / "annotations", root / "Annotations", *split_folders(root).values()])
    marks = (INSTANCES, ROBOFLOW_NAME)  # tell a file by its name, however damaged it may be
    listed = [file for folder in folders for file in sorted(folder.glob("[!.]*.json"))[:MAX_FILES]]
    files = [file for file in listed if file.name.startswith(marks) or looks_like_coco(file)]
    for chosen in marks:
        named = [file for file in files if file.name.startswith(chosen)]
        if named:
            return named
    entries = [entry for folder in existing([root, root / "images"]) for entry in first_entries(folder)]
    if files or not any(is_image_name(entry.name) for entry in entries):  # else folders may be classes
        return files
    return [file for file in listed if _lacks_images(file)]


def _lacks_images(file: Path) -> bool:
    """Tell whether a file of annotations is empty, or a list of boxes alone, which reading explains."""
    start = start_of(file).strip()
    is_list = start.startswith(b"[") and b'"category_id"' in start and b'"bbox"' in start
    return is_list or (not start and "annotation" in file.name.lower())


def _image_folders(root: Path, file: Path, split: SplitName) -> list[Path]:
    bases = existing([root, root / "images"])
    named = [found[split].name for base in bases if split in (found := split_folders(base))]
    spellings = [file.stem.removeprefix(INSTANCES), file.stem, *named]
    folders = [file.parent, file.parent / "images"]
    for name in dict.fromkeys(spellings):
        folders += [root / name, root / "images" / name, root / name / "images", file.parent / name]
    folders += [root / "images", root / "JPEGImages", root / "data", root]
    return existing(folders)


def _no_images(file: Path, entries: list[Any], reading: Reading) -> DataError:
    if repeated := reading.notes.get("repeated-image-ids"):
        return DataError(
            f"{file} gives every image id to several images, such as {repeated[0]}",
            expected="an id of its own for each image",
            remedy="Number the images anew, and their annotations with them",
        )
    named = [entry.get("file_name") for entry in entries if isinstance(entry, Mapping)]
    shown = next((name for name in named if isinstance(name, str)), None)
    given = f"lists {number_of(len(entries), 'image')} without a file_name"
    if shown is not None:
        given = f"names {number_of(len(entries), 'image')} and none exists, such as {shown!r}"
    return DataError(
        f"{file} {given}",
        expected=f"images beside the file, or in a folder of {reading.root} named as the split or images; "
        "elsewhere, files below the folder VITRAIL_DATA alone are read",
        remedy="Put the images there, or correct each file_name",
    )


FORMAT = Format(
    name="COCO",
    layout="COCO JSON: a .json file with images, annotations and categories, alone beside its images, in the "
    "folders train, valid and test, or as annotations/instances_train.json beside train/",
    recognises=recognises,
    read=read,
    suffixes=(".json",),
    rank=10,
)
