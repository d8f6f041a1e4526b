"""YOLO: one text file of boxes per image, in ``labels/`` beside ``images/``, and a YAML file of class names.

The format: https://docs.ultralytics.com/datasets/detect/. A line holds class id, centre, width and height,
normalised by the size of the upright image; lines with more numbers are outlines (segmentation) or keypoints.
"""

from __future__ import annotations

import os
import re
import reprlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import torch

from vitrail.core.boxes import xyxy_to_cxcywh
from vitrail.core.errors import DataError, import_optional, reading, reason_of
from vitrail.core.files import read_file
from vitrail.data.file_places import (
    existing,
    first_entries,
    folders_in,
    forms_of,
    is_image_name,
    lies_in,
    list_images,
    nested,
    relative_name,
    split_folders,
    start_of,
)
from vitrail.data.formats import Format
from vitrail.data.splits import SPLIT_NAMES, SplitName
from vitrail.data.text.lines import decode_text, read_list
from vitrail.tasks.detection.assembly import (
    AnnotatedBox,
    AnnotatedImage,
    Classes,
    Reading,
    as_number,
    assemble,
    finite_numbers,
    whole_number,
)
from vitrail.tasks.detection.dataset import RawBoxes

MAX_BYTES = 1 << 20  # of a YAML file; names of ten thousand classes take a fifth of it
MAX_VALUES, MAX_DEPTH = 200_000, 50  # in it, with aliases written out, and levels of brackets
CONFIG_KEYS = re.compile(rb"^(names|nc)\s*:", re.M)
FOLDER_KEYS = re.compile(rb"^(train|val|valid|validation|test|path)\s*:", re.M)
LABEL_LINE = re.compile(rb"^\s*\d+(\.0*)?([\s,;]+[-+.\deE]+){4,}[\s,;]*$")
POINTS = 3  # an outline has at least as many
CONFIG_SUFFIXES = (".yaml", ".yml")


@dataclass(frozen=True)
class YoloConfig:
    """The content of a YAML file; all fields may be empty."""

    file: Path | None = None
    folders: Mapping[SplitName, tuple[str, ...]] = field(default_factory=dict)
    """Image folders, or lists of images, of each split."""
    base: str = ""
    """The folder they are relative to, itself relative to the file."""
    names: Mapping[int, str] = field(default_factory=dict)
    """Class names by id."""
    num_classes: int | None = None
    numbers_per_box: int | None = None
    """Keypoint data sets: numbers on a line after the class, the box included."""


def parse_labels(
    text: str, numbers_per_box: int | None = None
) -> tuple[list[AnnotatedBox], set[str], list[str]]:
    """Read the lines of one label file; invalid lines are collected, not raised.

    Returns:
        boxes: centre, width and height, normalised.
        kinds: of notes on what the lines hold besides boxes.
        malformed: lines that hold no valid box, as messages name them.
    """
    boxes: list[AnnotatedBox] = []
    kinds: set[str] = set()
    malformed: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        values = line.split()
        if not values:
            continue
        has_commas = "," in line or ";" in line
        if has_commas:
            values = line.replace(";", " ").split()
            is_decimal = len(values) > 4 and any(re.fullmatch(r"-?\d*,\d+", value) for value in values)
            values = " ".join(values).replace(",", "." if is_decimal else " ").split()
        numbers = finite_numbers(list(map(as_number, values)))
        if numbers and len(numbers) == 5 and numbers[0] % 1 and not numbers[4] % 1 and max(numbers[:4]) <= 1:
            kinds.add("class-last")
            numbers = [numbers[4], *numbers[:4]]
        class_id = None if numbers is None else whole_number(numbers[0])
        if numbers is None or class_id is None or len(numbers) < 5:
            malformed.append(f"line {number} ({line.strip()[:60]!r})")
            continue
        box = numbers[1:]
        if has_commas:
            kinds.add("commas")
        if len(box) == 5:
            kinds.add("confidences")
        elif len(box) > 4 and len(box) == numbers_per_box:
            kinds.add("keypoints")
        elif len(box) >= 2 * POINTS and len(box) % 2 == 0:
            kinds.add("polygons")
            corners = [min(box[::2]), min(box[1::2]), max(box[::2]), max(box[1::2])]
            box = xyxy_to_cxcywh(torch.tensor(corners, dtype=torch.float64)).tolist()
        elif len(box) > 4:
            malformed.append(f"line {number} ({len(numbers)} numbers)")
            continue
        boxes.append(AnnotatedBox(box[:4], class_id))
    return boxes, kinds, malformed


def looks_like_config(path: Path) -> bool:
    """Tell from its text whether a YAML file names classes and folders."""
    content = start_of(path, MAX_BYTES)
    return CONFIG_KEYS.search(content) is not None and FOLDER_KEYS.search(content) is not None


def load_config(path: Path) -> YoloConfig:
    """Read a YAML file."""
    yaml = import_optional("yaml", f"reading {path} needs", "pyyaml", "detection", DataError)

    def faulty(given: str, expected: str) -> DataError:
        return DataError(f"{path} {given}", expected=expected, remedy="Correct the file")

    expected = "a YAML file with the keys names, train and val"
    with reading(path, expected=expected, remedy="Correct the file", error=DataError):
        text = read_file(path, MAX_BYTES + 1)
        if len(text) > MAX_BYTES:
            raise ValueError(f"it has more than {MAX_BYTES:,} bytes")
        # twenty times as fast; deep nesting would end it
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        _check_size(yaml, yaml.parse(text, loader))
        content = yaml.load(text, loader)
    if not isinstance(content, Mapping):
        raise faulty(f"holds {reprlib.repr(content)}", expected)
    folders: dict[SplitName, tuple[str, ...]] = {}
    for key, value in content.items():
        split = SPLIT_NAMES.get(str(key).lower())
        if split is None or value is None or split in folders:
            continue
        entries = value if isinstance(value, list) else [value]
        if not all(isinstance(entry, str) and entry.strip() for entry in entries):
            raise faulty(f"says {key}: {reprlib.repr(value)}", "a folder of images, or a list of folders")
        folders[split] = tuple(entry.strip() for entry in entries)
    names = {} if content.get("names") is None else content["names"]
    if not isinstance(names, list | Mapping):
        raise faulty(f"says names: {reprlib.repr(names)}", "a list of names, or names by id")
    named: dict[int, str] = {}
    for key, name in names.items() if isinstance(names, Mapping) else enumerate(names):
        class_id = whole_number(key)
        if class_id is None or class_id < 0 or isinstance(name, list | Mapping | None):
            given = f"names the class {reprlib.repr(key)}: {reprlib.repr(name)}"
            raise faulty(given, "a text for each id 0, 1, ...")
        named[class_id] = str(name).strip() or str(class_id)
    base, shape = content.get("path"), content.get("kpt_shape")
    sides = [whole_number(side) or 0 for side in shape] if isinstance(shape, list) else []
    return YoloConfig(
        path,
        folders,
        base.strip() if isinstance(base, str) else "",
        named,
        whole_number(content.get("nc")),
        4 + sides[0] * sides[1] if len(sides) == 2 and all(sides) else None,
    )


def _check_size(yaml: Any, events: Iterable[Any]) -> None:
    """Refuse what nests deeply or, aliases written out as merging (``<<``) does, has too many values."""
    total, levels, size_of = 0, list[tuple[Any, int]](), dict[Any, int]()
    for event in events:
        if isinstance(event, yaml.CollectionEndEvent):
            anchor, before = levels.pop()
            size_of[anchor] = total - before
            continue
        total += size_of.get(event.anchor, 1) if isinstance(event, yaml.AliasEvent) else 1
        if isinstance(event, yaml.CollectionStartEvent):
            levels.append((event.anchor, total - 1))
        if len(levels) > MAX_DEPTH or total > MAX_VALUES:
            told = f"more than {MAX_DEPTH} levels, or {MAX_VALUES:,} values with its aliases written out"
            raise ValueError(f"it has {told}")


NAME_ENTRY = "the name of a class, in the order of the ids,"
CONFIG_NAMES = ("data", "dataset", "config")
NAME_FILES = (
    "classes.txt", "obj.names", "_darknet.labels", "classes.names", "labels.txt", "predefined_classes.txt",
)  # fmt: skip
LIST_FILES = ("train.txt", "valid.txt", "val.txt", "test.txt")
GENERIC = frozenset({"images", "labels", "data", "."})  # too common to tell a folder alone


def find_config(root: Path) -> Path | None:
    """Find the YAML file of a folder, beside the images or one folder deeper."""
    files = list(_configs(root))
    usual = [file for name in CONFIG_NAMES for file in files if file.stem.lower() == name]
    if len(files) > 1 and not usual:
        raise DataError(
            f"{root} holds {len(files)} YAML files of data sets: " + ", ".join(file.name for file in files),
            expected="one, or one named data.yaml",
            remedy=f"Give the path of the one that you mean, such as {files[0]}",
        )
    return next(iter(usual or files), None)


def has_labels(root: Path) -> bool:
    """Tell cheaply whether a folder holds images with label files in one of the usual layouts."""
    folders = [root, *split_folders(root).values()]
    labels = existing([folder / "labels" for folder in folders])
    apart = [inner for folder in labels for inner in (folder, *folders_in(folder)[:5])]
    if any((root / name).is_file() for name in LIST_FILES):
        folders += folders_in(root)[:5]
    return any(map(_holds_labels, apart)) or any(
        _holds_labels(folder, beside_images=True) for folder in folders
    )


def images_by_split(root: Path) -> dict[SplitName, list[Path]]:
    """List the images of each split of a folder without a YAML file."""
    for base in (root / "images", root):
        folders = split_folders(base) if base.is_dir() else {}
        if "train" in folders:
            found = {split: _images_in(folder) for split, folder in folders.items()}
            return {split: images for split, images in found.items() if images}
    lists: dict[SplitName, list[Path]] = {}
    for name in LIST_FILES:
        file, split = root / name, SPLIT_NAMES[name.removesuffix(".txt")]
        if file.is_file() and split not in lists and (images := read_image_list(file, [root], root)):
            lists[split] = images
    if "train" in lists:
        return lists
    return {"train": _images_in(root)}


def _images_in(folder: Path) -> list[Path]:
    return list_images(folder / "images" if (folder / "images").is_dir() else folder)


def read_image_list(file: Path, bases: Sequence[Path], bound: Path | None) -> list[Path]:
    """Read a text file of image paths, one per line, relative to the file or absolute.

    Args:
        bound: the folder that images must lie in, if there is one.
    """
    images = []
    for line in map(str.strip, read_list(file, entry="the path of an image")):
        if is_image_name(line):
            lost = file.parent / line
            if bound is not None and not lies_in(lost, [bound]):
                lost = bound / lost.name  # is reported as missing
            images.append(_resolve(line, [file.parent, *bases], bound) or lost)
    return images


def label_folder(folder: Path, stems: Iterable[str], bases: Sequence[Path]) -> Path | None:
    """Find the folder with the labels of a folder of images, or None.

    Folders with a label for one of the images come first, then any folder of labels.

    Args:
        bases: further folders that may hold ``labels/``, such as that of the YAML file.
    """
    wanted = {form for stem in stems for form in forms_of(stem)}
    candidates = existing(list(_label_folders(folder, bases)))
    fitting = (candidate for candidate in candidates if not wanted.isdisjoint(_texts_in(candidate)))
    return next(fitting, None) or next((candidate for candidate in candidates if candidate != folder), None)


def _texts_in(folder: Path) -> dict[str, Path]:
    """Return the text files of a folder by their names without the suffix, whatever its case."""
    names = sorted(name for name in os.listdir(folder) if name.lower().endswith(".txt"))
    return {name[:-4]: folder / name for name in names}


def _label_folders(folder: Path, bases: Sequence[Path]) -> Iterator[Path]:
    lower = [part.lower() for part in folder.parts]
    if "images" in lower:
        position = len(lower) - 1 - lower[::-1].index("images")
        before, after = Path(*folder.parts[:position]), folder.parts[position + 1 :]
        yield Path(before, "labels", *after)
        yield Path(before, *after, "labels")
        if not after and before.parent != before:  # split/images with labels/split
            yield before.parent / "labels" / before.name
        yield from (Path(base, "labels", *after) for base in bases)
    yield folder / "labels"
    yield folder.parent / "labels"
    yield folder.parent / "labels" / folder.name
    yield folder


def _resolve(path: str, bases: Sequence[Path], bound: Path | None) -> Path | None:
    """Resolve a path, falling back to its trailing parts where the data was moved, or lies out of bounds."""
    relative = PurePosixPath(path.replace("\\", "/"))
    parts = [part for part in relative.parts if part not in ("..", "/", ".")]
    tails = [PurePosixPath(*parts[start:]) for start in range(len(parts))]
    wanted = [relative, *(tail for tail in tails if str(tail).lower() not in GENERIC)]
    found = (base / name for name in wanted for base in bases)
    if bound is not None:
        found = (inside for each in found if lies_in(inside := Path(os.path.normpath(each)), [bound]))
    return next((each for each in found if each.exists()), None)


def _configs(root: Path) -> Iterator[Path]:
    for folder in (root, *folders_in(root)[:20]):
        for entry in sorted(first_entries(folder), key=lambda entry: entry.name):
            path = Path(entry.path)
            if path.suffix.lower() in (".yaml", ".yml") and looks_like_config(path):
                yield path


def _holds_labels(folder: Path, *, beside_images: bool = False) -> bool:
    names = {entry.name for entry in first_entries(folder)}
    texts = sorted(name for name in names if name.lower().endswith(".txt") and name not in NAME_FILES)
    if beside_images:
        stems = {os.path.splitext(name)[0] for name in names if is_image_name(name)}
        texts = [name for name in texts if name[:-4] in stems]
    return any(_looks_like_labels(folder / name) for name in texts[:20])


def _looks_like_labels(path: Path) -> bool:
    """Tell from its first line whether a file holds boxes."""
    first = next((line for line in start_of(path).splitlines() if line.strip()), b"")
    return LABEL_LINE.match(first) is not None


@dataclass
class _YoloReading(Reading):
    config: YoloConfig = YoloConfig()
    used: set[Path] = field(default_factory=set)
    """The label files of images."""
    label_folders: set[Path] = field(default_factory=set)
    bound: Path | None = None
    """The folder that was named; a file of settings in it does not lead out of it, one that was named may."""

    @property
    def bases(self) -> list[Path]:
        return [self.root] if self.config.file is None else [self.config.file.parent, self.root]


def recognises(path: Path) -> bool:
    """Accept a YAML file of names and folders, a folder with one, or one with images and label files."""
    if path.is_file():
        return path.suffix.lower() in CONFIG_SUFFIXES and looks_like_config(path)
    return path.is_dir() and any(_is_root(root) for root in nested(path))


def _is_root(folder: Path) -> bool:
    return next(_configs(folder), None) is not None or has_labels(folder)


def read(path: Path) -> RawBoxes:
    """Read the data set in a folder or described by a YAML file.

    Raises:
        DataError: a file is damaged, classes have no names, or there are no images or no labels.
    """
    root = path.parent
    config_file: Path | None = path
    if path.is_dir():
        root = next(root for root in nested(path) if _is_root(root))
        config_file = find_config(root)
    config = YoloConfig() if config_file is None else load_config(config_file)
    done = _YoloReading(root, config=config, bound=path if path.is_dir() else None)
    by_split = _images(done)
    for split, images in by_split.items():
        if entries := _annotate(images, split, done):
            done.annotated[split] = entries
    if not done.label_folders:
        raise DataError(
            f"{root} holds {sum(map(len, by_split.values()))} images and no label file for any of them",
            expected="a .txt file of the same name for each image, in labels/ beside images/",
            remedy="Put the labels there",
        )
    classes = Classes.of_ids(_class_names(done), done)
    done.without_image += [relative_name(file, root) for file in _orphans(done)]
    return assemble(done, classes, box_format="cxcywh_shares")


def _images(done: _YoloReading) -> dict[SplitName, list[Path]]:
    """Return the images of each split."""
    config = done.config
    if config.file is None or not config.folders:
        found = images_by_split(done.root)
        if any(found.values()):
            return found
        given = f"{done.root} holds label files and no image"
        if config.file is not None:
            given = f"{config.file} names no folder of images, and none lies beside it"
        expected = "images beside them, or in images/ beside labels/"
        raise DataError(given, expected=expected, remedy="Put the images there")
    here = config.file.parent
    stated = here / config.base
    bases = existing([stated, here, done.root, here.parent])
    by_split: dict[SplitName, list[Path]] = {}
    for split, entries in config.folders.items():
        images: list[Path] = []
        missing: list[str] = []
        for entry in entries:
            path = _resolve(entry, bases, done.bound)
            if path is None:
                missing.append(entry)
                continue
            if os.path.normpath(path) != os.path.normpath(stated / entry):
                done.note("moved-paths", f"{split}: {entry}")
            images += read_image_list(path, bases, done.bound) if path.is_file() else list_images(path)
        if images:
            by_split[split] = images
        for entry in missing if images or missing else [", ".join(entries)]:
            done.note("missing-splits", f"{split}: {entry}")
    is_absolute = all(PureWindowsPath(entry).anchor for entry in sum(config.folders.values(), ()))
    if not by_split and is_absolute and any((found := images_by_split(done.root)).values()):
        done.notes["moved-paths"] = done.notes.pop("missing-splits")
        return found
    if not by_split:
        absent = ", ".join(done.notes["missing-splits"])
        raise DataError(
            f"{config.file} names folders that are not there or hold no image ({absent})",
            expected=f"folders of images relative to {stated}",
            remedy="Correct the paths in the file, or put the images there"
            + f"; name the file itself if they lie outside of {done.bound}" * (done.bound is not None),
        )
    return by_split


def _annotate(images: Sequence[Path], split: SplitName, done: _YoloReading) -> list[AnnotatedImage]:
    """Pair images with their label files; a folder without any labels is skipped, since it says nothing."""
    by_folder: dict[Path, list[Path]] = {}
    for image in images:
        by_folder.setdefault(image.parent, []).append(image)
    annotated = []
    for folder, members in by_folder.items():
        labels = label_folder(folder, (image.stem for image in members), done.bases)
        if labels is None:
            done.note("unlabelled-folders", f"{split}: {relative_name(folder, done.root)}")
            continue
        done.label_folders.add(labels)
        texts = _texts_in(labels)
        for image in members:
            file = next((texts[form] for form in forms_of(image.stem) if form in texts), None)
            entry = _read_labels(image, file, done)
            annotated += [] if entry is None else [entry]
    return annotated


def _read_labels(image: Path, file: Path | None, done: _YoloReading) -> AnnotatedImage | None:
    entry = AnnotatedImage(image, relative_name(image, done.root))
    if file is None:
        done.without_annotations.append(entry.name)
        return entry
    called = relative_name(file, done.root)
    done.used.add(file)
    try:
        text = decode_text(read_file(file))
    except (OSError, UnicodeDecodeError) as error:
        done.note("unreadable-annotations", f"{called}: {reason_of(error)}")
        return None
    entry.boxes, kinds, malformed = parse_labels(text, done.config.numbers_per_box)
    for kind in sorted(kinds):
        done.note(kind, called)
    entry.num_malformed = len(malformed)
    for fault in malformed:
        done.note("malformed-boxes", f"{called}: {fault}")
    return entry


def _orphans(done: _YoloReading) -> list[Path]:
    texts = {file for folder in done.label_folders for file in _texts_in(folder).values()}
    return sorted(
        file
        for file in texts - done.used
        if file.name not in (*NAME_FILES, *LIST_FILES)
        and (_looks_like_labels(file) or (not file.stat().st_size and file.parent.name != "images"))
    )


def _class_names(done: _YoloReading) -> dict[int, str]:
    """Return the class names by id, from the YAML file or a list with a name in each line."""
    config = done.config
    if config.names:
        if config.num_classes is not None and config.num_classes != len(config.names):
            done.note("class-count", f"nc: {config.num_classes}, names: {len(config.names)}")
        return dict(config.names)
    folders = sorted(done.label_folders)
    for folder in dict.fromkeys([done.root, *folders, *sorted(each.parent for each in folders)]):
        for file in (folder / name for name in NAME_FILES if (folder / name).is_file()):
            lines = [line.strip() for line in read_list(file, entry=NAME_ENTRY)]
            while lines and not lines[-1]:
                lines.pop()
            if lines:
                return {index: line or str(index) for index, line in enumerate(lines)}
    where = f"{config.file} has no names" if config.file else f"{done.root} has no file of class names"
    raise DataError(
        f"{where}, so that the classes have numbers alone",
        expected="data.yaml with 'names: [first, second, ...]', or classes.txt with a name in each line",
        remedy="Write the names, in the order of the class ids",
    )


FORMAT = Format(
    name="YOLO",
    layout="YOLO: images/ and labels/ with a .txt file for each image, in either nesting with train, valid "
    "and test, and data.yaml (or classes.txt) with the names of the classes",
    recognises=recognises,
    read=read,
    suffixes=CONFIG_SUFFIXES,
    rank=30,
)
