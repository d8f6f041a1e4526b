"""Where the images and labels of a YOLO data set lie, in any of the nestings that tools write."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath

from vitrail.core.errors import DataError
from vitrail.data.file_places import (
    existing,
    first_entries,
    folders_in,
    is_image_name,
    list_images,
    split_folders,
)
from vitrail.data.splits import SplitName
from vitrail.data.text.lines import read_list
from vitrail.tasks.detection.formats.yolo_text import YoloConfig, looks_like_config, looks_like_labels

CONFIG_NAMES = ("data", "dataset", "config")
NAME_FILES = (
    "classes.txt",
    "obj.names",
    "_darknet.labels",
    "classes.names",
    "labels.txt",
    "predefined_classes.txt",
)
LIST_FILES = ("train.txt", "valid.txt", "val.txt", "test.txt")
GENERIC = frozenset({"images", "labels", "data", "."})  # too common to tell a folder alone


def find_config(root: Path) -> Path | None:
    """Return the YAML file of a folder, beside the images or one folder deeper.

    Raises:
        DataError: there are several and none has a usual name.
    """
    files = list(_configs(root))
    if len(files) > 1:
        usual = [file for name in CONFIG_NAMES for file in files if file.stem.lower() == name]
        if not usual:
            raise DataError(
                f"{root} holds {len(files)} YAML files of data sets: "
                + ", ".join(file.name for file in files),
                expected="one, or one named data.yaml",
                remedy=f"Give the path of the one that you mean, such as {files[0]}",
            )
        files = usual
    return files[0] if files else None


def has_config(root: Path) -> bool:
    """Tell cheaply whether a folder has such a YAML file."""
    return next(_configs(root), None) is not None


def has_labels(root: Path) -> bool:
    """Tell cheaply whether a folder holds images with label files in one of the nestings."""
    folders = [root, *split_folders(root).values()]
    for labels in existing([folder / "labels" for folder in folders]):
        if any(_holds_labels(place) for place in (labels, *folders_in(labels)[:5])):
            return True
    if any(_holds_labels(folder, beside_images=True) for folder in folders):
        return True
    lists = [file for name in LIST_FILES if (file := root / name).is_file()]
    return bool(lists) and any(_holds_labels(inner, beside_images=True) for inner in folders_in(root)[:5])


def images_by_split(root: Path) -> dict[SplitName, list[Path]]:
    """Return the images of each split of a folder without a YAML file."""
    for base in (root / "images", root):
        folders = split_folders(base) if base.is_dir() else {}
        if "train" in folders:
            found = {
                split: list_images(folder / "images" if (folder / "images").is_dir() else folder)
                for split, folder in folders.items()
            }
            return {split: images for split, images in found.items() if images}
    lists: dict[SplitName, list[Path]] = {}
    for name, split in (("train", "train"), ("valid", "validation"), ("val", "validation"), ("test", "test")):
        file = root / f"{name}.txt"
        if file.is_file() and split not in lists:
            images = read_image_list(file, [root])
            if images:
                lists[split] = images  # type: ignore[index]
    if "train" in lists:
        return lists
    return {"train": list_images(root / "images" if (root / "images").is_dir() else root)}


def images_of_config(
    config: YoloConfig, split: SplitName, root: Path
) -> tuple[list[Path], list[str], list[str]]:
    """Return the images of a split that a YAML file names.

    Args:
        config: what the file says.
        split: of which split.
        root: the folder that the user named.

    Returns:
        images: the files.
        missing: what it names and is not there.
        moved: what it names and is not where it says, but found by the end of its path.
    """
    here = config.file.parent
    stated = here / config.base
    bases = existing([stated, here, root, here.parent])
    images: list[Path] = []
    missing, moved = [], []
    for place in config.folders[split]:
        found = _resolve(place, bases)
        if found is None:
            missing.append(f"{split}: {place}")
            continue
        if os.path.normpath(found) != os.path.normpath(stated / place):
            moved.append(f"{split}: {place}")
        images += read_image_list(found, bases) if found.is_file() else list_images(found)
    return images, missing, moved


def read_image_list(file: Path, bases: Sequence[Path]) -> list[Path]:
    """Return the images that a text file lists, a path in each line, relative to the file or absolute.

    Raises:
        DataError: it is no text.
    """
    images = []
    for line in map(str.strip, read_list(file, entry="the path of an image")):
        if is_image_name(line):
            images.append(_resolve(line, [file.parent, *bases]) or file.parent / line)
    return images


def label_folder(folder: Path, stems: Iterable[str], bases: Sequence[Path]) -> Path | None:
    """Return where the label files of a folder of images are, or None.

    Folders that have a label for one of the images come first, then any folder of labels.

    Args:
        folder: the folder of images.
        stems: the names of its images without suffixes.
        bases: folders that may hold ``labels/`` as well, such as that of the YAML file.
    """
    wanted = {f"{stem}.txt" for stem in stems}
    places = existing(list(_label_folders(folder, bases)))
    for place in places:
        if not wanted.isdisjoint(os.listdir(place)):
            return place
    return next((place for place in places if place != folder), None)


def _label_folders(folder: Path, bases: Sequence[Path]) -> Iterator[Path]:
    parts = folder.parts
    for position in reversed(range(len(parts))):
        if parts[position].lower() != "images":
            continue
        before, after = Path(*parts[:position]), parts[position + 1 :]
        yield Path(before, "labels", *after)
        yield Path(before, *after, "labels")
        if not after and before.parent != before:  # split/images with labels/split
            yield before.parent / "labels" / before.name
        for base in bases:
            yield Path(base, "labels", *after)
        break
    yield folder / "labels"
    yield folder.parent / "labels"
    yield folder.parent / "labels" / folder.name
    yield folder


def _resolve(place: str, bases: Sequence[Path]) -> Path | None:
    """Return what a path stands for, or the end of it where the data was moved."""
    relative = PurePosixPath(place.replace("\\", "/"))
    for base in bases:
        if _exists(base / relative):
            return base / relative
    parts = [part for part in relative.parts if part not in ("..", "/", ".")]
    for start in range(len(parts)):
        tail = parts[start:]
        if len(tail) == 1 and (tail[0].lower() in GENERIC):
            continue
        for base in bases:
            if _exists(base.joinpath(*tail)):
                return base.joinpath(*tail)
    return None


def _exists(path: Path) -> bool:
    return path.is_dir() or path.is_file()


def _configs(root: Path) -> Iterator[Path]:
    for place in (root, *folders_in(root)[:20]):
        for entry in sorted(first_entries(place), key=lambda entry: entry.name):
            path = Path(entry.path)
            if path.suffix.lower() in (".yaml", ".yml") and looks_like_config(path):
                yield path


def _holds_labels(folder: Path, *, beside_images: bool = False) -> bool:
    names = {entry.name for entry in first_entries(folder)}
    texts = sorted(name for name in names if name.endswith(".txt") and name not in NAME_FILES)
    if beside_images:
        stems = {os.path.splitext(name)[0] for name in names if is_image_name(name)}
        texts = [name for name in texts if name[:-4] in stems]
    return any(looks_like_labels(folder / name) for name in texts[:20])
