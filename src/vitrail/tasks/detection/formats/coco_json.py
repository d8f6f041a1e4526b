"""COCO's JSON of instances: one file with ``images``, ``annotations`` and ``categories``.

The format: https://cocodataset.org/#format-data, sections 1 and 2. A box is x, y, width and height in pixels
(``bbox``); outlines (``segmentation``) and key points are not read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitrail.core.errors import DataError
from vitrail.data.file_places import ImageFinder, relative_name
from vitrail.tasks.detection.assembly import AnnotatedImage, claimed_size, finite_numbers, whole_number
from vitrail.tasks.detection.notes import Notes

EXPECTED = 'a JSON object with the lists "images", "annotations" and "categories", as COCO has it'
PEEK = 65536  # bytes of each end of a file that a cheap look reads


@dataclass
class CocoFile:
    """What one file holds."""

    images: list[AnnotatedImage]
    """The images that exist, in the file's order."""
    category_names: dict[int, str]
    """Names by id."""
    without_image: list[str]
    """Images and annotations that refer to what is not there."""


def looks_like_coco(path: Path) -> bool:
    """Tell from both ends of a file whether it holds images with annotations, complete or not."""
    try:
        with path.open("rb") as file:
            start = file.read(PEEK)
            file.seek(max(path.stat().st_size - PEEK, 0))
            ends = start + file.read(PEEK)
    except OSError:
        return False
    return start.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{") and (
        b'"images"' in ends and (b'"annotations"' in ends or b'"categories"' in ends)
    )


def load_coco(path: Path) -> dict[str, list[Any]]:
    """Read a file and check its outer form; one that announces no annotations at all is left without them.

    Raises:
        DataError: it cannot be read, is no JSON, or has other keys.
    """
    try:
        content = json.loads(path.read_bytes().decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise _broken(path, f"byte {error.start} is no UTF-8 text") from None
    except OSError as error:
        raise _broken(path, error.strerror or str(error)) from None
    except RecursionError:
        raise _broken(path, "its brackets are nested too deeply") from None
    except ValueError as error:
        raise _broken(path, str(error)) from None
    if not isinstance(content, Mapping):
        listed = "a list, as files of predictions are" if isinstance(content, list) else repr(content)[:60]
        raise DataError(
            f"{path} holds {listed}",
            expected=EXPECTED,
            remedy="Give the file of annotations",
        )
    absent = [key for key in ("images", "categories") if not isinstance(content.get(key), list)]
    annotations = content.get("annotations", [])
    if absent or not isinstance(annotations, list):
        missing = " and ".join(map(repr, absent or ["annotations"]))
        raise DataError(
            f"{path} has no list {missing}, its keys are {', '.join(map(repr, content)) or 'none'}",
            expected=EXPECTED,
            remedy="Export the annotations as COCO instances again, or rename the keys",
        )
    keys = ("images", "annotations", "categories")
    return {key: content[key] for key in keys if key in content}


def read_coco(
    path: Path, content: Mapping[str, list[Any]], finder: ImageFinder, root: Path, notes: Notes
) -> CocoFile:
    """Join the annotations of one file to its images.

    Args:
        path: the file, for messages.
        content: what ``load_coco`` returned.
        finder: where the images are.
        root: the folder that the images' names are relative to.
        notes: takes what is noticed.

    Raises:
        DataError: no category can be read.
    """
    names = _category_names(path, content["categories"])
    images, absent = _index_images(path, content["images"], finder, root, notes)
    missing = dict.fromkeys(absent.values())
    for position, entry in enumerate(content.get("annotations", [])):
        where = f"{path.name}: annotation {position}"
        if not isinstance(entry, Mapping):
            notes.add("malformed-entries", where)
            continue
        key = _key(entry.get("image_id"))
        if key is None:
            notes.add("malformed-entries", f"{where} (image_id {entry.get('image_id')!r:.40})")
        elif key in images:
            _add_box(images[key], entry, where, notes)
        elif key not in absent:
            missing[f"{path.name}: image_id {key}"] = None
    return CocoFile(list(images.values()), names, list(missing))


def _index_images(
    path: Path, entries: list[Any], finder: ImageFinder, root: Path, notes: Notes
) -> tuple[dict[str, AnnotatedImage], dict[str, str]]:
    """Return the images by id, and the names of those that do not exist by id."""
    images: dict[str, AnnotatedImage] = {}
    absent: dict[str, str] = {}
    for position, entry in enumerate(entries):
        key = _key(entry.get("id")) if isinstance(entry, Mapping) else None
        file_name = entry.get("file_name") if isinstance(entry, Mapping) else None
        if key is None or not isinstance(file_name, str):
            notes.add("malformed-entries", f"{path.name}: image {position}")
        elif key in images or key in absent:
            notes.add("repeated-image-ids", f"{path.name}: image id {key}")
        elif (file := finder.find(file_name)) is None:
            absent[key] = file_name
        else:
            images[key] = AnnotatedImage(
                file,
                relative_name(file, root),
                claimed_size=claimed_size(entry.get("height"), entry.get("width")),
            )
    return images, absent


def _add_box(image: AnnotatedImage, entry: Mapping[str, Any], where: str, notes: Notes) -> None:
    box = entry.get("bbox")
    numbers = finite_numbers(box) if isinstance(box, list) and len(box) == 4 else None
    category = whole_number(entry.get("category_id"))
    if numbers is None:
        notes.add("malformed-boxes", f"{where}, {image.name} (bbox {box!r:.60})")
    elif category is None:
        notes.add("malformed-boxes", f"{where}, {image.name} (category_id {entry.get('category_id')!r:.40})")
    else:
        image.boxes.append(numbers)
        image.classes.append(category)
        image.is_crowd.append(whole_number(entry.get("iscrowd") or 0) == 1 or entry.get("iscrowd") is True)


def _category_names(path: Path, entries: list[Any]) -> dict[int, str]:
    names: dict[int, str] = {}
    for entry in entries:
        class_id = whole_number(entry.get("id")) if isinstance(entry, Mapping) else None
        name = str(entry.get("name") or "").strip() if isinstance(entry, Mapping) else ""
        if class_id is None or not name:
            raise DataError(
                f"{path} has the category {entry!r:.80}",
                expected='a whole number as "id" and a text as "name"',
                remedy="Correct the list of categories",
            )
        if class_id in names and names[class_id] != name:
            raise DataError(
                f"{path} gives the id {class_id} to the categories {names[class_id]!r} and {name!r}",
                expected="an id of its own for each category",
                remedy="Correct the list of categories",
            )
        names[class_id] = name
    if not names:
        raise DataError(
            f"{path} has an empty list of categories",
            expected='at least one category with "id" and "name"',
            remedy="Export the annotations with their categories",
        )
    return names


def _key(value: Any) -> str | None:
    """Return an image id as text, so that 7 and "7" are one; None where it is neither."""
    return str(value) if isinstance(value, int | str) and not isinstance(value, bool) else None


def _broken(path: Path, reason: str) -> DataError:
    return DataError(
        f"{path} cannot be read: {reason}",
        expected=EXPECTED,
        remedy="Write or download the file again",
    )
