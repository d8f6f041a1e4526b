"""Pascal VOC: one XML file per image, in ``Annotations/`` beside ``JPEGImages/`` or beside the image.

The format: M. Everingham, J. Winn, "The PASCAL Visual Object Classes Challenge 2012 Development Kit", section
11.4. A bounding box is xmin, ymin, xmax and ymax in pixels. The challenge's own files count pixels from 1 and
include the last; most tools count from 0, and no file says which: numbers are taken as they stand, so boxes
of the challenge lie one pixel off at the left and the top.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree
from xml.parsers import expat

from vitrail.core.errors import DataError, reason_of
from vitrail.core.files import read_file
from vitrail.data.file_places import (
    IMAGE_SUFFIXES,
    ImageFinder,
    first_entries,
    folders_in,
    is_image_name,
    nested,
    relative_name,
    start_of,
)
from vitrail.data.formats import Format
from vitrail.data.splits import SPLIT_NAMES, SplitName, split_of
from vitrail.data.text.lines import read_list
from vitrail.tasks.detection.assembly import (
    AnnotatedImage,
    Classes,
    Reading,
    as_number,
    assemble,
    claimed_size,
)
from vitrail.tasks.detection.dataset import RawBoxes

CORNERS, SIDES = ("xmin", "ymin", "xmax", "ymax"), ("height", "width")
ANNOTATION_FOLDERS = ("Annotations", "annotations", "xmls", "labels")
IMAGE_FOLDERS = ("JPEGImages", "images", "Images", "img", "imgs")
LISTS = Path("ImageSets", "Main")
DEPTH, MAX_FOLDERS = 3, 20  # folders within folders, and folders of each, that are looked at
MAX_REASONS = 3
MAX_BYTES = 1 << 24  # a file of 16 MiB holds 50,000 boxes


def parse_voc(content: bytes) -> ElementTree.Element:
    """Parse the bytes of one file, which are not trusted: entities could grow without bound or read files.

    Raises:
        ValueError: it is not well-formed, too large, declares entities, or is not an annotation; the message
            says why.
    """
    if len(content) > MAX_BYTES:
        raise ValueError(f"it has more than {MAX_BYTES:,} bytes")

    def refuse_entity(name: str, *_: Any) -> None:
        raise ValueError(f"it declares the entity {name!r}, which is not allowed")

    builder = ElementTree.TreeBuilder()
    parser = expat.ParserCreate()
    parser.buffer_text = True
    parser.StartElementHandler = builder.start
    parser.EndElementHandler = builder.end
    parser.CharacterDataHandler = builder.data
    parser.EntityDeclHandler = refuse_entity
    try:
        parser.Parse(content, True)
        root = builder.close()
    except expat.ExpatError as error:
        raise ValueError(f"it is not well-formed XML: {error}") from None
    except LookupError as error:  # an encoding unknown to Python
        raise ValueError(f"its text cannot be decoded: {error}") from None
    if root.tag != "annotation":
        raise ValueError(f"its outermost element is <{root.tag}>, not <annotation>")
    return root


class _Part(NamedTuple):
    annotations: Path
    split: SplitName | None
    """None where the folder of each image tells it."""
    listed: Sequence[str] | None = None
    """Names without suffix of the images that belong to it; None for all that have a file."""


def recognises(path: Path) -> bool:
    """Accept a folder with XML files of annotations, up to three folders deep."""
    return path.is_dir() and bool(_annotation_folders(path))


def read(path: Path) -> RawBoxes:
    """Read the files of all splits.

    Raises:
        DataError: no annotation file can be read, or none has an image.
    """
    *_, root = nested(path)
    reading = Reading(root)
    num_read = sum(_read_part(part, reading, path) for part in _parts(path))
    broken = reading.notes.get("unreadable-annotations", [])
    if not num_read:
        raise DataError(
            f"none of the annotations in {root} can be read: {'; '.join(broken[:MAX_REASONS]) or 'no file'}",
            expected=FORMAT.layout,
            remedy="Write or download them again",
        )
    if not any(reading.annotated.values()):
        raise DataError(
            f"{root} has {num_read} files of annotations and none has an image, such as "
            f"{reading.without_image[0]}",
            expected="an image of the same name, beside the XML file or in another folder",
            remedy="Put the images there",
        )
    images = itertools.chain.from_iterable(reading.annotated.values())
    classes = Classes.of_names({str(box.key) for image in images for box in image.boxes})
    return assemble(reading, classes, box_format="xyxy")


def _read_part(part: _Part, reading: Reading, path: Path) -> int:
    """Read the files of one folder or list, and return how many could be read."""
    finder = ImageFinder(_image_folders(part, path))
    reading.finders.append(finder)
    num_read = 0
    shown = (file for file in part.annotations.iterdir() if not file.name.startswith("."))
    files = {file.stem: file for file in shown if file.suffix.lower() == ".xml"}
    for stem in sorted(files) if part.listed is None else part.listed:
        file = files.get(stem, part.annotations / f"{stem}.xml")
        called = relative_name(file, reading.root)
        try:
            content = parse_voc(read_file(file, MAX_BYTES + 1))
        except FileNotFoundError:
            if finder.find_stem(stem) is None:
                reading.without_image.append(f"{part.split} list: {stem}")
            else:
                reading.note("listed-without-annotations", stem)
            continue
        except (OSError, ValueError) as error:
            reading.note("unreadable-annotations", f"{called}: {reason_of(error)}")
            finder.find_stem(stem)  # is not an unlisted image
            continue
        num_read += 1
        file_name = (content.findtext("filename") or "").strip()
        is_named_alike = Path(file_name.replace("\\", "/")).stem == stem
        # The whole name first: masks may have the image's, with another suffix.
        image = (finder.find(file_name) if is_named_alike else None) or finder.find_stem(stem)
        if image is None:
            image = finder.find(file_name)
        elif file_name and not is_named_alike:
            reading.note("other-file-names", f"{called} ({file_name})")
        if image is None:
            reading.without_image.append(called)
            continue
        entry = AnnotatedImage(image, relative_name(image, reading.root))
        entry.claimed_size = claimed_size(*(as_number(content.findtext(f"size/{side}")) for side in SIDES))
        for position, found in enumerate(content.findall("object")):
            name = (found.findtext("name") or "").strip()
            corners = [found.findtext(f"bndbox/{corner}") for corner in CORNERS]
            told = f"{name or 'without a name'}: {', '.join(map(str, corners))}"
            reading.add_box(entry, corners, name, f"{called}: object {position} ({told})")
        if any((mark.text or "").strip() == "1" for mark in content.iterfind("object/difficult")):
            reading.note("difficult", entry.name)
        split = part.split or _split_in(image.parent, path) or "train"
        reading.annotated.setdefault(split, []).append(entry)
    return num_read


def _parts(path: Path) -> list[_Part]:
    """Return the folders of annotations, those whose paths name no split alone if there are any."""
    found = _annotation_folders(path)
    undivided = [folder for folder in found if _split_in(folder, path) is None]
    lists = {folder.parent: _lists(folder.parent / LISTS) for folder in undivided}
    if any(lists.values()) and len(lists) > 1:
        root = next(iter(lists))
        raise DataError(
            f"{root.parent} holds {len(lists)} data sets: " + ", ".join(each.name for each in lists),
            expected="one folder with Annotations and JPEGImages",
            remedy=f"Give one of them, such as {root}",
        )
    listed = [
        _Part(folder, split, ids) for folder in undivided[:1] for split, ids in lists[folder.parent].items()
    ]
    return listed or [_Part(folder, _split_in(folder, path)) for folder in undivided or found]


def _annotation_folders(path: Path) -> list[Path]:
    """Find folders of annotations by the beginning of some files."""
    *_, root = nested(path)
    found = []
    for folder in _folders(root, MAX_FOLDERS):
        listed = sorted(entry.name for entry in first_entries(folder))
        is_usual = folder == root or folder.name in ANNOTATION_FOLDERS or split_of(folder.name)
        if not is_usual and any(map(is_image_name, listed)):  # a class, or a data set of its own
            continue
        files = [folder / name for name in listed if name.lower().endswith(".xml")][:5]
        if any(re.search(rb"<annotation[\s>]", start_of(file)) for file in files):
            found.append(folder)
    return found


def _image_folders(part: _Part, path: Path) -> list[Path]:
    """Return the folders of images, those of usual names and near the annotations first."""
    *_, root = nested(path)
    folders = [*_folders(root), *nested(path)]
    if part.split is not None and part.listed is None:
        folders = [folder for folder in folders if _split_in(folder, path) in (None, part.split)]

    def distance(folder: Path) -> tuple[bool, int]:
        shared = os.path.commonpath([folder, part.annotations])
        return folder != part.annotations and folder.name not in IMAGE_FOLDERS, -len(shared)

    return sorted(folders, key=distance)


def _folders(root: Path, most: int | None = None) -> list[Path]:
    """Return a folder and those in it, three deep, at most so many of each."""
    found, level = [], [root]
    for _ in range(DEPTH):
        found += level
        level = [inner for folder in level for inner in folders_in(folder)[:most]]
    return [*found, *level]


def _split_in(folder: Path, path: Path) -> SplitName | None:
    """Return the split that a folder is named after, or one that it lies in."""
    parts = reversed(folder.relative_to(path).parts)
    return next((split for part in parts if (split := split_of(part))), None)


def _lists(folder: Path) -> dict[SplitName, list[str] | None]:
    """Return the image names by split listed in ImageSets/Main, else in its lists of single classes.

    Those of trainval count only without train.
    """
    found: dict[SplitName, list[str] | None] = {}
    for name in ("train", "val", "valid", "validation", "test"):
        alone = [file for file in [folder / f"{name}.txt"] if file.is_file()]
        files = alone or sorted(folder.glob(f"*_{name}.txt"))
        if ids := dict.fromkeys(each for file in files for each in _read_list(file)):
            found.setdefault(SPLIT_NAMES[name], [*ids])
    if "train" not in found and (file := folder / "trainval.txt").is_file():
        found.pop("validation", None)  # a part of trainval
        found["train"] = _read_list(file)
    return found


def _read_list(file: Path) -> list[str]:
    lines = read_list(file, entry="the name of an image")
    names = [Path(line.split()[0]) for line in lines if line.strip()]
    return [str(name.with_suffix("") if name.suffix in IMAGE_SUFFIXES else name) for name in names]


FORMAT = Format(
    name="Pascal VOC",
    layout="Pascal VOC: an .xml file for each image, in Annotations/ beside JPEGImages/ (with lists in "
    "ImageSets/Main) or beside the image, directly or in the folders train, valid and test",
    recognises=recognises,
    read=read,
    rank=20,
)
