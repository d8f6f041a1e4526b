"""Pascal VOC: one XML file per image, in ``Annotations/`` beside ``JPEGImages/`` or beside the image.

The format: M. Everingham, J. Winn, "The PASCAL Visual Object Classes Challenge 2012 Development Kit", section
11.4. A bounding box is xmin, ymin, xmax and ymax in pixels. The challenge's own files count pixels from 1 and
include the last; most tools count from 0, and no file says which: numbers are taken as they stand, so boxes
of the challenge lie one pixel off at the left and the top.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree
from xml.parsers import expat

from vitrail.core.errors import DataError
from vitrail.data.file_places import (
    IMAGE_SUFFIXES,
    ImageFinder,
    existing,
    first_entries,
    folders_in,
    is_image_name,
    nested,
    plain_bytes,
    relative_name,
    split_folders,
)
from vitrail.data.formats import Format
from vitrail.data.splits import SPLIT_NAMES, SplitName
from vitrail.data.text.lines import read_list
from vitrail.tasks.detection.assembly import (
    AnnotatedImage,
    Classes,
    Reading,
    as_number,
    assemble,
    claimed_size,
    reason_of,
)
from vitrail.tasks.detection.dataset import RawBoxes

CORNERS = ("xmin", "ymin", "xmax", "ymax")
ANNOTATION_FOLDERS = ("Annotations", "annotations", "xmls", "labels")
IMAGE_FOLDERS = ("JPEGImages", "images", "Images", "img", "imgs")
LISTS = Path("ImageSets", "Main")
MAX_REASONS = 3
MAX_BYTES = 1 << 24  # a file of 16 MiB holds 50,000 boxes
PEEK = 4096  # bytes that a cheap look reads


def parse_voc(content: bytes) -> ElementTree.Element:
    """Parse the bytes of one file, which are not trusted: entities could grow without bound or read files.

    Raises:
        ValueError: it is not well-formed, too large, declares entities, or is not an annotation; the message
            says why.
    """
    if len(content) > MAX_BYTES:
        raise ValueError(f"it has {len(content):,} bytes, more than {MAX_BYTES:,}")

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
    image_folders: Sequence[Path]
    listed: Sequence[str] | None = None
    """Names without suffix of the images that belong to it; None for all that have a file."""


def recognises(path: Path) -> bool:
    """Accept a folder with XML files of annotations, in Annotations/, beside images, or in splits."""
    return path.is_dir() and bool(_roots(path))


def read(path: Path) -> RawBoxes:
    """Read the files of all splits.

    Raises:
        DataError: no annotation file can be read, or none has an image.
    """
    root, parts = _find(path)
    reading = Reading(root)
    num_read = sum(_read_part(split, part, reading) for split, part in parts.items())
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
            expected="an image of the same name, in JPEGImages/, images/ or beside the XML file",
            remedy="Put the images there",
        )
    images = itertools.chain.from_iterable(reading.annotated.values())
    classes = Classes.of_names({str(box.key) for image in images for box in image.boxes})
    return assemble(reading, classes, box_format="xyxy")


def _read_part(split: SplitName, part: _Part, reading: Reading) -> int:
    """Read the files of one split, and return how many could be read."""
    finder = ImageFinder(part.image_folders)
    reading.finders.append(finder)
    images = reading.annotated.setdefault(split, [])
    num_read = 0
    shown = (file for file in part.annotations.iterdir() if not file.name.startswith("."))
    files = {file.stem: file for file in shown if file.suffix.lower() == ".xml"}
    for stem in sorted(files) if part.listed is None else part.listed:
        file = files.get(stem, part.annotations / f"{stem}.xml")
        called = relative_name(file, reading.root)
        try:
            content = parse_voc(file.read_bytes())
        except FileNotFoundError:
            if finder.find_stem(stem) is None:
                reading.without_image.append(f"{split} list: {stem}")
            else:
                reading.note("listed-without-annotations", stem)
            continue
        except (OSError, ValueError) as error:
            reading.note("unreadable-annotations", f"{called}: {reason_of(error)}")
            finder.find_stem(stem)  # is not an unlisted image
            continue
        num_read += 1
        image, file_name = finder.find_stem(stem), (content.findtext("filename") or "").strip()
        if image is None:
            image = finder.find(file_name)
        elif file_name and Path(file_name.replace("\\", "/")).stem != stem:
            reading.note("other-file-names", f"{called} ({file_name})")
        if image is None:
            reading.without_image.append(called)
            continue
        entry = AnnotatedImage(image, relative_name(image, reading.root))
        entry.claimed_size = claimed_size(*_numbers(content.find("size"), ("height", "width")))
        for position, found in enumerate(content.findall("object")):
            name = (found.findtext("name") or "").strip()
            reading.add_box(
                entry,
                _numbers(found.find("bndbox"), CORNERS),
                name,
                f"{called}: object {position} ({name or 'without a name'})",
            )
        if any((mark.text or "").strip() == "1" for mark in content.iterfind("object/difficult")):
            reading.note("difficult", entry.name)
        images.append(entry)
    return num_read


def _numbers(element: ElementTree.Element | None, names: tuple[str, ...]) -> list[float | None]:
    """Return the numbers of an element, None for those that are missing or no numbers."""
    return [None if element is None else as_number(element.findtext(name)) for name in names]


def _find(path: Path) -> tuple[Path, dict[SplitName, _Part]]:
    root, *others = _roots(path) or [path]
    if others:
        raise DataError(
            f"{root.parent} holds {1 + len(others)} data sets: "
            + ", ".join(each.name for each in (root, *others)),
            expected="one folder with Annotations and JPEGImages",
            remedy=f"Give one of them, such as {root}",
        )
    annotations = _annotation_folder(root)
    folders = [root / name for name in IMAGE_FOLDERS]
    if annotations is not None:
        images = existing([*folders, annotations, root])
        lists = _lists(root / LISTS) or {"train": None}
        return root, {split: _Part(annotations, images, ids) for split, ids in lists.items()}
    parts: dict[SplitName, _Part] = {}
    for split, folder in _split_parts(root).items():
        base = folder.parent if folder.name in ANNOTATION_FOLDERS else folder
        near = [base, *(base / name for name in IMAGE_FOLDERS), *(each / base.name for each in folders)]
        parts[split] = _Part(folder, existing([folder, *near, *folders]))
    return root, parts


def _roots(path: Path) -> list[Path]:
    """Return the folder of the data set, or several in one such as VOC2007 and VOC2012."""
    for folder in nested(path):
        if _is_root(folder):
            return [folder]
        inner = [
            each for each in folders_in(folder)[:20] if (each / "Annotations").is_dir() and _is_root(each)
        ]
        if inner:
            return inner
    return []


def _is_root(folder: Path) -> bool:
    return _annotation_folder(folder) is not None or bool(_split_parts(folder))


def _annotation_folder(folder: Path) -> Path | None:
    """Find annotations by the beginning of some files."""
    usual = existing([*(folder / name for name in ANNOTATION_FOLDERS), folder])
    others = [each for each in folders_in(folder)[:20] if each not in split_folders(folder).values()]
    for candidate in dict.fromkeys([*usual, *others]):
        listed = sorted(entry.name for entry in first_entries(candidate))
        if candidate not in usual and any(map(is_image_name, listed)):  # a data set of its own
            continue
        for name in [name for name in listed if name.lower().endswith(".xml")][:5]:
            with suppress(OSError), (candidate / name).open("rb") as file:
                if b"<annotation" in plain_bytes(file.read(PEEK)):
                    return candidate
    return None


def _split_parts(root: Path) -> Mapping[SplitName, Path]:
    parts: dict[SplitName, Path] = {}
    for base in existing([root, *(root / name for name in ANNOTATION_FOLDERS)]):
        for split, folder in split_folders(base).items():
            annotations = _annotation_folder(folder)
            if annotations is not None:
                parts.setdefault(split, annotations)
    return parts


def _lists(folder: Path) -> dict[SplitName, list[str] | None]:
    """Return the image names by split listed in ImageSets/Main; trainval only without train."""
    found: dict[SplitName, list[str] | None] = {}
    for name in ("train", "val", "valid", "validation", "test"):
        if (file := folder / f"{name}.txt").is_file():
            found.setdefault(SPLIT_NAMES[name], _read_list(file))
    if "train" not in found and (file := folder / "trainval.txt").is_file():
        found.pop("validation", None)  # a part of trainval
        found["train"] = _read_list(file)
    return {split: ids for split, ids in found.items() if ids}


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
