"""YOLO: a text file of boxes for each image, in ``labels/`` beside ``images/``, and a YAML file of names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from vitrail.core.errors import DataError
from vitrail.data.file_places import nested, relative_name
from vitrail.data.splits import SplitName
from vitrail.tasks.detection.assembly import AnnotatedImage, Classes, assemble
from vitrail.tasks.detection.dataset import SourceFacts
from vitrail.tasks.detection.formats.contract import DetectionFormat, RawBoxes
from vitrail.tasks.detection.formats.yolo_places import (
    LIST_FILES,
    NAME_FILES,
    find_config,
    has_config,
    has_labels,
    images_by_split,
    images_of_config,
    label_folder,
)
from vitrail.tasks.detection.formats.yolo_text import (
    YoloConfig,
    load_config,
    looks_like_config,
    looks_like_labels,
    parse_labels,
    read_names,
)
from vitrail.tasks.detection.notes import Notes

CONFIG_SUFFIXES = (".yaml", ".yml")


@dataclass
class _Read:
    """What was read so far."""

    root: Path
    """The folder that images' names are relative to."""
    bases: list[Path]
    """Folders that may hold labels/."""
    numbers_per_box: int | None
    notes: Notes = field(default_factory=Notes)
    without_labels: list[str] = field(default_factory=list)
    """Images that have no label file."""
    used: set[Path] = field(default_factory=set)
    """Label files that belong to an image."""
    label_folders: set[Path] = field(default_factory=set)


def recognises(path: Path) -> bool:
    """Accept a YAML file of names and folders, or a folder with one, or with images and label files."""
    if path.is_file():
        return path.suffix.lower() in CONFIG_SUFFIXES and looks_like_config(path)
    return path.is_dir() and any(has_config(root) or has_labels(root) for root in nested(path))


def read(path: Path) -> RawBoxes:
    """Read the data set that a YAML file describes, or that lies in a folder.

    Raises:
        DataError: a file is damaged, classes have no names, or there are no images or no labels.
    """
    root = path.parent
    config_file: Path | None = path
    if path.is_dir():
        root = next(place for place in nested(path) if has_config(place) or has_labels(place))
        config_file = find_config(root)
    config = None if config_file is None else load_config(config_file)
    done = _Read(root, [root], None)
    if config is not None:
        done.bases, done.numbers_per_box = [config.file.parent, root], config.numbers_per_box
    by_split = _images(config, done)
    annotated: dict[SplitName, list[AnnotatedImage]] = {}
    for split, images in by_split.items():
        entries = _annotate(images, split, done)
        if entries:
            annotated[split] = entries
    if not done.label_folders:
        raise DataError(
            f"{root} holds {sum(map(len, by_split.values()))} images and no label file for any of them",
            expected="a .txt file of the same name for each image, in labels/ beside images/",
            remedy="Put the labels there",
        )
    names = _class_names(config, done)
    facts = SourceFacts(
        images_without_annotations=tuple(done.without_labels),
        annotations_without_image=tuple(relative_name(file, root) for file in _orphans(done)),
    )
    classes = Classes.of_ids(names, done.notes)
    return assemble(annotated, classes, box_format="cxcywh_shares", notes=done.notes, facts=facts)


def _images(config: YoloConfig | None, done: _Read) -> dict[SplitName, list[Path]]:
    """Return the images of each split.

    Raises:
        DataError: there is none.
    """
    if config is None or not config.folders:
        found = images_by_split(done.root)
        if not any(found.values()):
            raise DataError(
                f"{done.root} holds label files and no image"
                if config is None
                else f"{config.file} names no folder of images, and none lies beside it",
                expected="images beside them, or in images/ beside labels/",
                remedy="Put the images there",
            )
        return found
    by_split: dict[SplitName, list[Path]] = {}
    for split in config.folders:
        images, missing, moved = images_of_config(config, split, done.root)
        for place in moved:
            done.notes.add("moved-paths", place)
        if images:
            by_split[split] = images
        else:
            missing = missing or [f"{split}: {', '.join(config.folders[split])}"]
        for place in missing:
            done.notes.add("missing-splits", place)
    if not by_split:
        stated = ", ".join(done.notes.of("missing-splits"))
        raise DataError(
            f"{config.file} names folders that are not there or hold no image ({stated})",
            expected=f"folders of images relative to {config.file.parent / config.base}",
            remedy="Correct the paths in the file, or put the images there",
        )
    return by_split


def _annotate(images: Sequence[Path], split: SplitName, done: _Read) -> list[AnnotatedImage]:
    """Join images to their label files; a folder without any is left out, since it says nothing."""
    by_folder: dict[Path, list[Path]] = {}
    for image in images:
        by_folder.setdefault(image.parent, []).append(image)
    annotated = []
    for folder, members in by_folder.items():
        labels = label_folder(folder, (image.stem for image in members), done.bases)
        if labels is None:
            done.notes.add("unlabelled-folders", f"{split}: {relative_name(folder, done.root)}")
            continue
        done.label_folders.add(labels)
        for image in members:
            entry = _read_labels(image, labels / f"{image.stem}.txt", done)
            if entry is not None:
                annotated.append(entry)
    return annotated


def _read_labels(image: Path, file: Path, done: _Read) -> AnnotatedImage | None:
    entry = AnnotatedImage(image, relative_name(image, done.root))
    done.used.add(file)
    try:
        text = file.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        done.without_labels.append(entry.name)
        return entry
    except (OSError, UnicodeDecodeError) as error:
        is_text = isinstance(error, OSError)
        reason = error.strerror if is_text else f"byte {error.start} is no UTF-8 text"  # type: ignore[union-attr]
        done.notes.add("unreadable-annotations", f"{relative_name(file, done.root)}: {reason}")
        return None
    labels = parse_labels(text, done.numbers_per_box)
    called = relative_name(file, done.root)
    for kind in sorted(labels.kinds):
        done.notes.add(kind, called)
    for fault in labels.malformed:
        done.notes.add("malformed-boxes", f"{called}: {fault}")
    entry.boxes, entry.classes = list(labels.boxes), list(labels.class_ids)
    return entry


def _orphans(done: _Read) -> list[Path]:
    """Return the label files that belong to no image."""
    texts = [file for folder in done.label_folders for file in folder.glob("*.txt") if file not in done.used]
    return sorted(
        file
        for file in texts
        if file.name not in (*NAME_FILES, *LIST_FILES)
        and (looks_like_labels(file) or (not file.stat().st_size and file.parent.name != "images"))
    )


def _class_names(config: YoloConfig | None, done: _Read) -> dict[int, str]:
    """Return the names of the classes by id, from the YAML file or a list of names.

    Raises:
        DataError: there are none.
    """
    if config is not None and config.names:
        if config.num_classes is not None and config.num_classes != len(config.names):
            done.notes.add("class-count", f"nc: {config.num_classes}, names: {len(config.names)}")
        return dict(config.names)
    folders = [
        done.root,
        *sorted(done.label_folders),
        *sorted({folder.parent for folder in done.label_folders}),
    ]
    for folder in dict.fromkeys(folders):
        for name in NAME_FILES:
            if (folder / name).is_file():
                named = read_names(folder / name)
                if named:
                    return named
    where = f"{config.file} has no names" if config is not None else f"{done.root} has no file of class names"
    raise DataError(
        f"{where}, so that the classes have numbers alone",
        expected="data.yaml with 'names: [first, second, ...]', or classes.txt with a name in each line",
        remedy="Write the names, in the order of the class ids",
    )


FORMAT = DetectionFormat(
    name="YOLO",
    layout="YOLO: images/ and labels/ with a .txt file for each image, in either nesting with train, valid "
    "and test, and data.yaml (or classes.txt) with the names of the classes",
    recognises=recognises,
    read=read,
    suffixes=CONFIG_SUFFIXES,
    rank=30,
)
