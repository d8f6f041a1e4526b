"""YOLO's label files, a line for each box, and the YAML file that names classes and folders.

The format: https://docs.ultralytics.com/datasets/detect/. A line is a class id, then centre, width and height
as shares of the upright image; with more numbers it is an outline (segmentation) or has key points.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from vitrail.core.boxes import xyxy_to_cxcywh
from vitrail.core.errors import DataError
from vitrail.data.splits import SPLIT_NAMES, SplitName
from vitrail.data.text.lines import read_list
from vitrail.tasks.detection.assembly import finite_numbers, whole_number

MAX_BYTES = 1 << 20  # of a YAML file; names of ten thousand classes take a fifth of it
PEEK = 4096  # bytes that a cheap look reads
CONFIG_KEYS = re.compile(rb"^(names|nc)\s*:", re.M)
FOLDER_KEYS = re.compile(rb"^(train|val|valid|validation|test|path)\s*:", re.M)
LABEL_LINE = re.compile(rb"^\s*\d+(\.0*)?(\s+[-+.\deE]+){4,}\s*$")
POINTS = 3  # an outline has at least as many


@dataclass
class YoloLabels:
    """The boxes of one image."""

    boxes: list[list[float]] = field(default_factory=list)
    """Centre, width and height of each as shares."""
    class_ids: list[int] = field(default_factory=list)
    """Class of each."""
    malformed: list[str] = field(default_factory=list)
    """Lines that are no box, as messages name them."""
    kinds: set[str] = field(default_factory=set)
    """What lines have beside boxes, as kinds of notes."""


@dataclass(frozen=True)
class YoloConfig:
    """What a YAML file says."""

    file: Path
    """The file."""
    folders: Mapping[SplitName, tuple[str, ...]]
    """Folders, or lists, of the images of each split."""
    base: str
    """What they are relative to, itself relative to the file; empty where that is not said."""
    names: Mapping[int, str]
    """Names of the classes by id; may be empty."""
    num_classes: int | None
    """The number of classes, where it is said."""
    numbers_per_box: int | None
    """Numbers of a line after the class in a set of key points, the box included."""


def parse_labels(text: str, numbers_per_box: int | None = None) -> YoloLabels:
    """Read the lines of one label file; what is no box is told, not raised.

    Args:
        text: the lines.
        numbers_per_box: how many numbers follow the class where there are key points.
    """
    labels = YoloLabels()
    corners: dict[int, list[float]] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        values = line.split()
        if not values:
            continue
        numbers = _to_numbers(values)
        class_id = None if numbers is None else whole_number(numbers[0])
        if numbers is None or class_id is None or len(numbers) < 5:
            labels.malformed.append(f"line {number} ({line.strip()[:60]!r})")
            continue
        rest = numbers[1:]
        if len(rest) == 5:
            labels.kinds.add("confidences")
        elif len(rest) > 4 and len(rest) == numbers_per_box:
            labels.kinds.add("keypoints")
        elif len(rest) >= 2 * POINTS and len(rest) % 2 == 0:
            labels.kinds.add("polygons")
            corners[len(labels.boxes)] = [min(rest[::2]), min(rest[1::2]), max(rest[::2]), max(rest[1::2])]
        elif len(rest) > 4:
            labels.malformed.append(f"line {number} ({len(numbers)} numbers)")
            continue
        labels.boxes.append(rest[:4])
        labels.class_ids.append(class_id)
    if corners:
        around = xyxy_to_cxcywh(torch.tensor(list(corners.values()), dtype=torch.float64)).tolist()
        for position, box in zip(corners, around, strict=True):
            labels.boxes[position] = box
    return labels


def looks_like_labels(path: Path) -> bool:
    """Tell from its first line whether a file holds boxes."""
    try:
        with path.open("rb") as file:
            lines = file.read(PEEK).splitlines()
    except OSError:
        return False
    return LABEL_LINE.match(next((line for line in lines if line.strip()), b"")) is not None


def looks_like_config(path: Path) -> bool:
    """Tell from its text whether a YAML file names classes and folders."""
    try:
        if path.stat().st_size > MAX_BYTES:
            return False
        content = path.read_bytes()
    except OSError:
        return False
    return CONFIG_KEYS.search(content) is not None and FOLDER_KEYS.search(content) is not None


def load_config(path: Path) -> YoloConfig:
    """Read a YAML file.

    Raises:
        DataError: it is no YAML, or its names or folders are not what they must be.
    """
    content = _load_yaml(path)
    folders: dict[SplitName, tuple[str, ...]] = {}
    for key, value in content.items():
        split = SPLIT_NAMES.get(str(key).lower())
        if split is None or value is None or split in folders:
            continue
        places = value if isinstance(value, list) else [value]
        if not all(isinstance(place, str) and place.strip() for place in places):
            raise _faulty(
                path, f"says {key}: {reprlib.repr(value)}", "a folder of images, or a list of folders"
            )
        folders[split] = tuple(place.strip() for place in places)
    base = content.get("path")
    return YoloConfig(
        path,
        folders,
        base.strip() if isinstance(base, str) else "",
        _names(path, content.get("names")),
        whole_number(content.get("nc")),
        _numbers_per_box(content.get("kpt_shape")),
    )


def read_names(path: Path) -> dict[int, str]:
    """Read a file with the name of a class in each line.

    Raises:
        DataError: it is no text.
    """
    lines = read_list(path, entry="the name of a class, in the order of the ids,")
    while lines and not lines[-1].strip():
        lines.pop()
    return {index: line.strip() or str(index) for index, line in enumerate(lines)}


def _to_numbers(values: list[str]) -> list[float] | None:
    try:
        return finite_numbers([float(value) for value in values])
    except ValueError:
        return None


def _load_yaml(path: Path) -> Mapping[Any, Any]:
    try:
        import yaml
    except ImportError:
        raise DataError(
            f"reading {path} needs the package pyyaml, which is not installed",
            expected="pyyaml beside vitrail",
            remedy="Install it with: pip install 'vitrail[detection]'",
        ) from None
    try:
        if path.stat().st_size > MAX_BYTES:
            raise _faulty(path, f"has more than {MAX_BYTES:,} bytes", "names of classes and folders")
        content = yaml.safe_load(path.read_bytes())
    except DataError:
        raise
    except (yaml.YAMLError, OSError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise _faulty(path, f"cannot be read: {reason}", "a YAML file with names, train and val") from None
    if not isinstance(content, Mapping):
        raise _faulty(
            path, f"holds {reprlib.repr(content)}", "a YAML file with the keys names, train and val"
        )
    return content


def _names(path: Path, names: Any) -> dict[int, str]:
    if names is None:
        return {}
    if not isinstance(names, list | Mapping):
        raise _faulty(path, f"says names: {reprlib.repr(names)}", "a list of names, or names by id")
    pairs = names.items() if isinstance(names, Mapping) else enumerate(names)
    named: dict[int, str] = {}
    for key, name in pairs:
        class_id = whole_number(key)
        if class_id is None or class_id < 0 or isinstance(name, list | Mapping | None):
            raise _faulty(
                path,
                f"names the class {reprlib.repr(key)}: {reprlib.repr(name)}",
                "a text for each id 0, 1, ...",
            )
        named[class_id] = str(name).strip() or str(class_id)
    return named


def _numbers_per_box(shape: Any) -> int | None:
    if not (isinstance(shape, list) and len(shape) == 2):
        return None
    number, values = whole_number(shape[0]), whole_number(shape[1])
    return None if number is None or values is None else 4 + number * values


def _faulty(path: Path, given: str, expected: str) -> DataError:
    return DataError(f"{path} {given}", expected=expected, remedy="Correct the file")
