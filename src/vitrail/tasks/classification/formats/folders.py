"""Class folders: ``DATA/cat/1.jpg``, or ``DATA/train/cat/1.jpg`` beside ``DATA/test/cat/2.jpg``."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from vitrail.core.errors import DataError
from vitrail.data.dataset import ImageSplit, encode_labels, order_class_names
from vitrail.data.file_places import folders_in, is_folder, is_image_name, is_shown, split_folders, walk
from vitrail.data.findings import Finding, about, number_of, some_of
from vitrail.data.formats import Format, RawDataset
from vitrail.data.splits import SPLIT_NAMES, SplitName
from vitrail.data.tables import TABLE_SUFFIXES, tell_tables

CLASS_FOLDERS = "class folders"
NUMBERED = re.compile(r"(?P<stem>(?!class|label)[a-z]{3,})[ _-]?(\d+|(?<=[ _-])[a-z])")  # cam1, site_b


@dataclass
class _Scan:
    """Result of walking class folders."""

    images: dict[str, list[Path]] = field(default_factory=dict)  # by class
    stray: list[str] = field(default_factory=list)  # images beside the class folders
    ignored: Counter[str] = field(default_factory=Counter)  # other files, by suffix
    empty: list[str] = field(default_factory=list)  # class folders without an image


def read(path: Path) -> RawDataset:
    """Read class folders, with or without split folders; ``DataError`` if no class folder holds an image."""
    root = _descend(path)
    parts = _split_folders(root)
    folders: dict[SplitName, Path] = parts or {"train": root}
    scans = {name: _scan(folder, root) for name, folder in folders.items()}
    nested = tuple(_enter_sources(scans, folders, root))
    class_names = order_class_names(name for scan in scans.values() for name in scan.images)
    if not class_names:
        raise _nothing_found(path, root, scans)
    splits: dict[SplitName, ImageSplit] = {}
    for split_name, scan in scans.items():
        labels = [name for name in class_names for _ in scan.images.get(name, ())]
        images = [image for name in class_names for image in scan.images.get(name, ())]
        names = [image.relative_to(root).as_posix() for image in images]
        splits[split_name] = ImageSplit(images, encode_labels(labels, class_names), names)
    return RawDataset(
        class_names=class_names,
        splits=splits,
        findings=(*nested, *_find_same_names(scans), *_findings(scans, root, set(parts.values()))),
        format="train and test folders" if parts else CLASS_FOLDERS,
    )


def has_classes(path: Path) -> bool:
    """Return whether at least two class folders hold an image, without scanning all files."""
    if not path.is_dir():
        return False
    root = _descend(path)
    named = {
        folder.name
        for part in _split_folders(root).values() or [root]
        for folder in folders_in(part)
        if any(is_image_name(file.name) for file in walk(folder))
    }
    return len(named) > 1


def _split_folders(root: Path) -> dict[SplitName, Path]:
    """Return the folders of the splits, if there is a training split."""
    found = {split: part for split, part in split_folders(root).items() if part.name.lower() in SPLIT_NAMES}
    return found if "train" in found else {}


def _descend(path: Path) -> Path:
    """Enter folders that hold nothing but one folder of folders, as an unpacked archive does."""
    while not _split_folders(path):
        folders = folders_in(path)
        is_alone = len(folders) == 1 and not any(is_image_name(entry.name) for entry in path.iterdir())
        if not is_alone or not folders_in(folders[0]):
            break
        path = folders[0]
    return path


def _scan(folder: Path, root: Path) -> _Scan:
    scan = _Scan()
    for entry in filter(lambda entry: is_shown(entry.name), sorted(folder.iterdir())):
        name = entry.relative_to(root).as_posix()
        if is_folder(entry):
            files = sorted(walk(entry))
            images = [file for file in files if is_image_name(file.name)]
            scan.ignored.update(file.suffix.lower() for file in files if not is_image_name(file.name))
            if images:
                scan.images[entry.name] = images
            else:
                scan.empty.append(name)
        elif is_image_name(entry.name):
            scan.stray.append(name)
        else:
            scan.ignored[entry.suffix.lower()] += 1
    return scan


def _enter_sources(
    scans: dict[SplitName, _Scan], folders: dict[SplitName, Path], root: Path
) -> Iterator[Finding]:
    """Take inner folders for the classes where the outer ones are cameras or sites, such as ``cam1/cat``.

    They are if their names differ in a number or letter at the end alone, and the same folders are in each.
    Folders inside of other class folders are reported.
    """
    by_inner: dict[SplitName, dict[str, list[Path]]] = {}
    inside: dict[str, set[str]] = {}  # names in each outer folder; empty for images
    for split, scan in scans.items():
        inner = by_inner[split] = {}
        for outer, images in scan.images.items():
            for image in images:
                name = "".join(image.relative_to(folders[split] / outer).parts[:-1][:1])
                inner.setdefault(name, []).append(image)
                inside.setdefault(outer, set()).add(name)
    shared = set.intersection(*inside.values()) if len(inside) > 1 else set()
    if len(shared) < 2 or "" in shared.union(*inside.values()) or shared <= SPLIT_NAMES.keys():
        for outer, names in inside.items():
            if len(names) > 1 and "" not in names and not names <= SPLIT_NAMES.keys():
                yield Finding(
                    "warning",
                    "folders-inside",
                    f"the class folder {outer} holds {len(names)} folders and no image beside them: "
                    f"{some_of(sorted(names), len(names))}",
                    f"If these are the classes, name the folder {root / outer}",
                )
        return
    stems = {NUMBERED.fullmatch(name.lower()) for name in inside}
    are_sources = None not in stems and len({match["stem"] for match in stems if match}) == 1
    used, other = ("inner", "outer") if are_sources else ("outer", "inner")
    if are_sources:
        for split, scan in scans.items():
            scan.images = by_inner[split]
    remedy = f"If it is the {other} ones, move the images into folders of these names alone"
    if are_sources and len(folders) == 1:
        remedy += (
            "; every split has images of each outer folder, unless you put some into train/, others in test/"
        )
    yield Finding(
        "warning",
        "same-folders-inside",
        f"{number_of(len(inside), 'folder')} hold the same folders "
        f"({some_of(sorted(shared), len(shared))}); the {used} ones are the classes",
        remedy,
        tuple(sorted(inside)),
    )


def _find_same_names(scans: dict[SplitName, _Scan]) -> Iterator[Finding]:
    """Class folders that hold the same few names, such as kitchen.jpg, which may be the classes."""
    named = {
        outer: frozenset(image.stem.lower() for image in images)
        for scan in scans.values()
        for outer, images in scan.images.items()
    }
    stems, *others = set(named.values())
    if not others and len(named) > 2 and len(stems) > 1 and all(map(str.isalpha, stems)):
        first = next(iter(named))
        yield Finding(
            "warning",
            "same-names-inside",
            f"each of {len(named)} folders holds files of the same names "
            f"({some_of(sorted(stems), len(stems))}); the folders are the classes, such as {first!r}",
            "If the names are the classes, move the files into a folder of each name",
            tuple(named),
        )


def _findings(scans: dict[SplitName, _Scan], root: Path, entered: set[Path]) -> Iterator[Finding]:
    stray = [name for scan in scans.values() for name in scan.stray]
    unread: list[str] = []
    if entered:
        unread = [folder.name for folder in folders_in(root) if folder not in entered]
        stray += [entry.name for entry in sorted(root.iterdir()) if is_image_name(entry.name)]
    empty = [name for scan in scans.values() for name in scan.empty]
    ignored = sum((scan.ignored for scan in scans.values()), Counter[str]())
    move = "Move each into the folder of its class, or away"
    name = "Move them away, or name them train, val or test"
    fill = "Put images there or remove the folders"
    for items, check, message, remedy in (
        (stray, "stray-images", "images beside the class folders are not used", move),
        (unread, "unread-folders", "folders beside the train folder are not used", name),
        (empty, "empty-class", "class folders without an image", fill),
    ):
        yield from about(items, "warning", check, f"{message}: {len(items)}", remedy)
    if ignored:
        kinds = ", ".join(f"{count} {suffix or 'without suffix'}" for suffix, count in ignored.most_common(5))
        yield Finding(
            "info",
            "ignored-files",
            f"other files are not used: {ignored.total()} ({kinds})",
            "Nothing, if they are not meant as images",
            count=ignored.total(),
        )


def _nothing_found(path: Path, root: Path, scans: dict[SplitName, _Scan]) -> DataError:
    stray = sum(len(scan.stray) for scan in scans.values())
    ignored = sum(scan.ignored.total() for scan in scans.values())
    if stray:
        given = f"the folder {root} holds {number_of(stray, 'image')} but no class folder with images"
    elif ignored or any(scan.empty for scan in scans.values()):
        given = f"the folder {path} holds no image, {number_of(ignored, 'other file')}"
    else:
        given = f"the folder {path} is empty"
    other = next((file for file in walk(path) if file.suffix.lower() in TABLE_SUFFIXES), None)
    if other is not None and not stray and other.parent not in (path, root):
        return DataError(
            f"{given}; there are tables in folders inside it",
            expected="a table, or a folder of tables named train, dev and test",
            remedy=f"Name one of them, such as {other.parent}",
        )
    texts = sum(scan.ignored[".txt"] for scan in scans.values())
    if 2 * texts > ignored:
        return DataError(
            f"the folder {path} holds no image, {number_of(texts, 'text file')}",
            expected="labelled texts in a table with the columns text and label; sentence pairs in two files "
            "of equal lines, such as train.en and train.de; images in a folder for each class",
            remedy="Write texts and labels into one table, such as by: for f in "
            f'{path}/*/*.txt; do jq -Rsc --arg label "$(basename "$(dirname "$f")")" '
            "'{text: ., label: $label}' \"$f\"; done > texts.jsonl",
        )
    return DataError(
        given + tell_tables(root),
        expected=f"{FORMAT.layout}; or annotations of boxes (COCO, Pascal VOC, YOLO) or captions beside them",
        remedy="Put the images of each class into a folder with its name, or add the annotations",
    )


FORMAT = Format(
    name=CLASS_FOLDERS,
    layout="a folder for each class with its images inside, directly or in train/ and test/ (or val/)",
    recognises=Path.is_dir,  # the fallback format
    read=read,
    rank=100,
)
