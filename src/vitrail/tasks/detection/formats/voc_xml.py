"""The XML file that Pascal VOC has for each image.

The format: M. Everingham, J. Winn, "The PASCAL Visual Object Classes Challenge 2012 Development Kit", section
11.4. A box is xmin, ymin, xmax and ymax in pixels. The challenge's own files count pixels from 1 and include
the last; most tools that write the format count from 0, and no file says which: numbers are taken as they
stand, so that boxes of the challenge lie one pixel off at the left and the top.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree
from xml.parsers import expat

from vitrail.tasks.detection.assembly import claimed_size, finite_numbers

CORNERS = ("xmin", "ymin", "xmax", "ymax")
MAX_BYTES = 1 << 24  # a file of 16 MiB holds 50,000 boxes
PEEK = 4096  # bytes that a cheap look reads


@dataclass
class VocImage:
    """What one file says of its image."""

    file_name: str
    """Of the image; empty where it is not named."""
    size: tuple[int, int] | None
    """Height and width."""
    boxes: list[list[float]] = field(default_factory=list)
    """Corners of each object."""
    names: list[str] = field(default_factory=list)
    """Class of each object."""
    is_difficult: list[bool] = field(default_factory=list)
    """Whether each object is marked as difficult."""
    malformed: list[str] = field(default_factory=list)
    """Objects without a class or four numbers, as messages name them."""


def looks_like_voc(path: Path) -> bool:
    """Tell from its beginning whether a file is an annotation."""
    try:
        with path.open("rb") as file:
            return b"<annotation" in file.read(PEEK).replace(b"\0", b"")  # UTF-16 has a zero in each letter
    except OSError:
        return False


def parse_voc(content: bytes) -> VocImage:
    """Read the bytes of one file.

    Raises:
        ValueError: they are not such a file; the message says why.
    """
    root = parse_xml(content)
    if root.tag != "annotation":
        raise ValueError(f"its outermost element is <{root.tag}>, not <annotation>")
    size = root.find("size")
    claimed = None
    if size is not None:
        claimed = _numbers(size, ("height", "width"))
    image = VocImage(
        (root.findtext("filename") or "").strip(),
        None if claimed is None else claimed_size(*claimed),
    )
    for position, entry in enumerate(root.findall("object")):
        name = (entry.findtext("name") or "").strip()
        corners = entry.find("bndbox")
        numbers = None if corners is None else _numbers(corners, CORNERS)
        if not name or numbers is None:
            image.malformed.append(f"object {position} ({name or 'without a name'})")
            continue
        image.boxes.append(numbers)
        image.names.append(name)
        image.is_difficult.append((entry.findtext("difficult") or "").strip() == "1")
    return image


def parse_xml(content: bytes) -> ElementTree.Element:
    """Parse XML that nobody vouches for: entities are refused, which could grow without bound or read files.

    Raises:
        ValueError: it is not well-formed, too large, or declares entities.
    """
    if len(content) > MAX_BYTES:
        raise ValueError(f"it has {len(content):,} bytes, more than {MAX_BYTES:,}")
    builder = ElementTree.TreeBuilder()
    parser = expat.ParserCreate()
    parser.buffer_text = True
    parser.StartElementHandler = builder.start
    parser.EndElementHandler = builder.end
    parser.CharacterDataHandler = builder.data
    parser.EntityDeclHandler = _refuse_entity
    try:
        parser.Parse(content, True)
        return builder.close()
    except expat.ExpatError as error:
        raise ValueError(f"it is no well-formed XML: {error}") from None
    except LookupError as error:  # an encoding that Python does not know
        raise ValueError(f"its text cannot be decoded: {error}") from None


def _refuse_entity(name: str, *_: Any) -> None:
    raise ValueError(f"it declares the entity {name!r}, which is not allowed")


def _numbers(element: ElementTree.Element, names: tuple[str, ...]) -> list[float] | None:
    try:
        return finite_numbers([float(element.findtext(name) or "") for name in names])
    except ValueError:
        return None
