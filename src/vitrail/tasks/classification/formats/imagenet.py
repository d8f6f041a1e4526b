"""ImageNet (ILSVRC 2012) as published: training folders by wnid, validation images and labels."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import numpy as np

from vitrail.core.errors import DataError
from vitrail.core.files import read_file
from vitrail.data.dataset import ImageSplit
from vitrail.data.file_places import folders_in, is_image_name
from vitrail.data.findings import Finding
from vitrail.data.formats import Format, RawDataset, reading_file
from vitrail.data.splits import SplitName
from vitrail.tasks.classification.formats.lists import read_matlab

WNID = re.compile(r"^n\d{8}$")
VALIDATION_NAME = re.compile(r"ILSVRC2012_val_(\d{8})", re.IGNORECASE)
ROOTS = (".", "ILSVRC/Data/CLS-LOC", "Data/CLS-LOC")  # the second is the layout of Kaggle's archive
VALIDATION_FOLDERS = ("val", "validation", "ILSVRC2012_img_val")
TRAIN_FOLDERS = ("train", "ILSVRC2012_img_train")
NUM_CLASSES = 1000  # of the challenge, the first of the devkit's synsets

MAPPING = "LOC_synset_mapping.txt"  # Kaggle: a wnid and its names per line
KAGGLE = "LOC_val_solution.csv"
SYNSETS = "imagenet_2012_validation_synset_labels.txt"  # TensorFlow: one wnid per line
DEVKIT = ("ILSVRC2012_devkit_t12/data", "devkit/data", "data", ".")
TRUTH = "ILSVRC2012_validation_ground_truth.txt"


def recognises(path: Path) -> bool:
    """Accept published validation images, flat or alone; anything else is plain class folders."""
    folder = _find(path, VALIDATION_FOLDERS)
    first = None if folder is None else _first_image(folder)
    return first is not None and (first.parent == folder or _find(path, TRAIN_FOLDERS) is None)


def read(path: Path) -> RawDataset:
    """Read train and validation as far as present; the classes are wnids in sorted order.

    A list beside the images names all classes, so that a class keeps its index where others have no image.
    The training images may be absent: the split is then empty.

    Raises:
        DataError: nothing gives the classes of the validation images.
    """
    validation_folder = _find(path, VALIDATION_FOLDERS)
    assert validation_folder is not None, "recognised"
    train_folder = _find(path, TRAIN_FOLDERS)
    train = {} if train_folder is None else _by_class(train_folder)
    validation = _by_class(validation_folder)
    findings = []
    if not validation:
        files = sorted(entry for entry in validation_folder.iterdir() if is_image_name(entry.name))
        truth = _truth(path)
        if not truth:
            raise DataError(
                f"no list in {path} gives the classes of the validation images",
                expected=f"{KAGGLE}, {SYNSETS}, or {DEVKIT[0]}/{TRUTH} with its meta.mat; or class folders",
                remedy="Put one of these lists there",
            )
        validation = _group(files, truth)
        if len(truth) > len(files):
            findings.append(
                Finding(
                    "info",
                    "missing-validation-images",
                    f"{len(truth) - len(files)} of {len(truth)} validation images are not there",
                    "Scores are of those that are",
                )
            )
    class_names = _all_classes(path, {*train, *validation})
    unknown = sorted({*train, *validation} - set(class_names))
    if unknown:
        raise DataError(
            f"{path} has images of {', '.join(unknown[:3])}, which its list of classes does not name",
            expected=f"wnids of {MAPPING} or the devkit",
            remedy="Remove these folders, or the list",
        )
    splits: dict[SplitName, ImageSplit] = {
        "train": _to_split("train", train, class_names),
        "validation": _to_split("val", validation, class_names),
    }
    return RawDataset(class_names=class_names, splits=splits, findings=tuple(findings), upright=False)


def validation_number(name: str) -> int | None:
    """Return the 1-based number in a validation image's name, or None."""
    found = VALIDATION_NAME.search(name)
    return int(found[1]) if found else None


def _find(path: Path, names: tuple[str, ...]) -> Path | None:
    folders = (path / root / name for root in ROOTS for name in names)
    return next((folder for folder in folders if folder.is_dir()), None)


def _first_image(folder: Path) -> Path | None:
    """Return one published validation image, flat in the folder or in its first class."""
    for parent in (folder, *(entry for entry in folders_in(folder)[:1] if WNID.match(entry.name))):
        for entry in parent.iterdir():
            if validation_number(entry.name) is not None:
                return entry
    return None


def _by_class(folder: Path) -> dict[str, list[Path]]:
    classes = [entry for entry in folders_in(folder) if WNID.match(entry.name)]
    return {
        entry.name: sorted(file for file in entry.iterdir() if is_image_name(file.name)) for entry in classes
    }


def _group(files: list[Path], truth: dict[int, str]) -> dict[str, list[Path]]:
    by_class: dict[str, list[Path]] = {}
    for file in files:
        number = validation_number(file.name)
        if number not in truth:
            raise DataError(
                f"{file} has no class in the list of validation images",
                expected="names such as ILSVRC2012_val_00000001.JPEG, with a number that the list has",
                remedy="Move the image away, or fetch the list again",
            )
        by_class.setdefault(truth[number], []).append(file)
    return by_class


def _to_split(part: str, by_class: dict[str, list[Path]], class_names: tuple[str, ...]) -> ImageSplit:
    """Order training images by class, validation images by number."""
    index_of = {name: index for index, name in enumerate(class_names)}
    rows = [(file, index_of[name]) for name, files in by_class.items() for file in files]
    rows.sort(key=lambda row: (validation_number(row[0].name) or 0, row[1], row[0].name))
    names = [f"{part}/{class_names[label]}/{file.name}" for file, label in rows]
    return ImageSplit([file for file, _ in rows], np.array([label for _, label in rows], np.int64), names)


def _all_classes(path: Path, present: set[str]) -> tuple[str, ...]:
    """Return the sorted wnids of the list beside the images, else those with images."""
    listed = path / MAPPING
    if listed.is_file():
        named = {line.split(maxsplit=1)[0] for line in _lines(listed) if line.strip()}
    elif len(present) >= NUM_CLASSES:
        named = present
    elif (devkit := _devkit(path)) is not None:
        named = set(_wnids_of(devkit).values())
    else:
        named = present | set(_truth(path).values())
    return tuple(sorted(wnid for wnid in named if WNID.match(wnid)))


def _truth(path: Path) -> dict[int, str]:
    """Return the wnid of each validation image by its number, from whichever list is there."""
    with reading_file(path, expected="the lists of classes as they were published"):
        if (path / KAGGLE).is_file():
            rows = csv.DictReader(_lines(path / KAGGLE))
            return {
                validation_number(row["ImageId"]) or 0: row["PredictionString"].split(maxsplit=1)[0]
                for row in rows
            }
        if (path / SYNSETS).is_file():
            return dict(enumerate((line.strip() for line in _lines(path / SYNSETS)), start=1))
        devkit = _devkit(path)
        if devkit is None:
            return {}
        ids, wnids = [int(line) for line in _lines(devkit / TRUTH) if line.strip()], _wnids_of(devkit)
        return {number: wnids[label] for number, label in enumerate(ids, start=1)}


def _devkit(path: Path) -> Path | None:
    folders = (path / name for name in DEVKIT)
    return next(
        (folder for folder in folders if (folder / TRUTH).is_file() and (folder / "meta.mat").is_file()), None
    )


def _wnids_of(devkit: Path) -> dict[int, str]:
    synsets = read_matlab(devkit / "meta.mat")["synsets"]
    return {int(entry["ILSVRC2012_ID"]): str(entry["WNID"]) for entry in synsets[:NUM_CLASSES]}


def _lines(path: Path) -> list[str]:
    with reading_file(path, expected="text in UTF-8"):
        return read_file(path).decode().splitlines()


FORMAT = Format(
    name="ImageNet",
    layout="ImageNet as published: val/ with ILSVRC2012_val_*.JPEG, flat beside a list of their classes or "
    "in folders by wnid, and train/ with folders by wnid",
    recognises=recognises,
    read=read,
    rank=15,
)
