"""Checks of the classes: empty, small, imbalanced, similar names."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from vitrail.data.findings import Finding, number_of
from vitrail.data.inspection import Examined, SeenImages
from vitrail.tasks.classification.benchmarks import benchmark_of

MIN_PER_CLASS = 10  # training images; fewer hardly show the variation within a class
HEAVY_IMBALANCE = 10.0  # largest class over smallest


def find_missing_classes(examined: Examined) -> Iterator[Finding]:
    """Classes without training images or without test images."""
    train, test = examined.per_class["train"], examined.per_class["test"]
    others = test + examined.per_class["validation"]
    if np.count_nonzero(train) < 2:
        yield Finding(
            "error",
            "one-class",
            f"{np.count_nonzero(train)} of {len(train)} classes have a usable training image",
            "Give training images of at least two classes",
            examined.class_list(train > 0),
        )
    if ((train == 0) & (others > 0)).any():
        names = examined.class_list((train == 0) & (others > 0))
        is_published = benchmark_of(examined.dataset.source) is not None
        yield Finding(
            "warning" if is_published else "error",
            "class-not-in-train",
            f"{number_of(len(names), 'class', 'classes')} to be tested without a training image",
            "Nothing to do: the splits are the published ones, which others train on as they are"
            if is_published
            else "Give training images for each, remove the class, or correct its name if it is misspelt",
            names,
        )
    if ((train == 0) & (others == 0)).any():
        names = examined.class_list((train == 0) & (others == 0))
        yield Finding(
            "warning",
            "empty-class",
            f"{number_of(len(names), 'class', 'classes')} without any usable image",
            "The model will have an output that it never learns; remove the class or give images",
            names,
        )
    if test.any() and ((train > 0) & (test == 0)).any():
        names = examined.class_list((train > 0) & (test == 0))
        yield Finding(
            "warning",
            "class-not-in-test",
            f"{number_of(len(names), 'class', 'classes')} without a test image",
            "The score says nothing about them; give test images, or correct a misspelt name",
            names,
        )
    if not test.any():
        yield Finding("warning", "no-test", "there is no usable test image", "Give more images of each class")


def find_similar_names(examined: SeenImages) -> Iterator[Finding]:
    """Class names that differ only in case, spaces, hyphens or underscores."""
    alike = defaultdict(list)
    for name in examined.class_names:
        alike["".join(letter for letter in name.casefold() if letter not in " -_")].append(name)
    pairs = tuple(" = ".join(map(repr, names)) for names in alike.values() if len(names) > 1)
    if pairs:
        yield Finding(
            "warning",
            "similar-class-names",
            f"{number_of(len(pairs), 'class name')} spelt in several ways",
            "Join these classes if they mean the same",
            pairs,
        )


def find_small_classes(examined: Examined) -> Iterator[Finding]:
    """Classes with too few training images."""
    train = examined.per_class["train"]
    small = (train > 0) & (train < MIN_PER_CLASS)
    if small.any():
        names = tuple(
            f"{examined.dataset.class_names[index]} ({train[index]})" for index in np.flatnonzero(small)
        )
        yield Finding(
            "warning",
            "small-classes",
            f"{number_of(len(names), 'class', 'classes')} with fewer than {MIN_PER_CLASS} training images",
            "Collect more, or start from pretrained weights",
            names,
        )


def find_imbalance(examined: Examined) -> Iterator[Finding]:
    """The largest class is many times the smallest."""
    train = examined.per_class["train"]
    present = train[train > 0]
    if len(present) > 1 and present.max() >= HEAVY_IMBALANCE * present.min():
        names = examined.dataset.class_names
        largest = int(train.argmax())
        smallest = int(np.where(train > 0, train, train.max() + 1).argmin())
        yield Finding(
            "warning",
            "imbalance",
            f"the largest class has {present.max() / present.min():.0f} times the images of the smallest",
            "Read the scores per class; the plain accuracy hides the small classes",
            (f"{names[largest]} ({train[largest]})", f"{names[smallest]} ({train[smallest]})"),
        )
