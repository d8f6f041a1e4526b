"""Checks of a data set before training: errors, pitfalls, and facts worth knowing.

Nothing on disk is changed. Every check is a function of the examined data set that yields findings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

import numpy as np

from vitrail.data.dataset import ImageDataset, Progress
from vitrail.data.findings import Finding, Verdict, about, counted, joined, judge, number_of
from vitrail.data.image_checks import (
    OF_THE_SOURCE,
    find_conversions,
    find_odd_sizes,
    find_repeated,
    find_similar_names,
    find_uneven_classes,
    find_unreadable,
    find_wrong_suffixes,
)
from vitrail.data.inspection import Examined, SeenImages, inspect_splits
from vitrail.tasks.data_page import DataView, draw_image, plots_of_images


def check(dataset: ImageDataset, progress: Progress | None = None) -> Verdict:
    """Examine every image of every split; published tests are left whole."""
    examined = LabelledImages(dataset, inspect_splits(dataset.splits, progress))
    exclude = frozenset(examined.unreadable) - frozenset(_published_test(examined))
    return judge(dataset, examined, CHECKS, exclude=exclude)


def view_images(dataset: ImageDataset) -> DataView:
    """Return what the doctor's page shows of labelled images."""
    return DataView(
        lambda split, index, _: draw_image(split, index, [dataset.class_names[split.labels[index]]]),
        labels=lambda split: [{label} for label in split.labels.tolist()],
        by_class=True,
        plots=plots_of_images(dataset),
    )


class LabelledImages(SeenImages):
    """A data set of labelled images with the inspection of each of its images."""

    dataset: ImageDataset

    @cached_property
    def per_class(self) -> dict[str, np.ndarray]:
        usable = self.dataset.without(self.unreadable).splits
        return {name: split.count_per_class(len(self.class_names)) for name, split in usable.items()}

    @property
    def equal_groups(self) -> list[list[tuple[str, str, str]]]:
        """Split, name and class of the images, those of the same pixels together."""
        splits, names = self.dataset.splits, self.class_names
        return [
            [(split, name, names[splits[split].labels[index]]) for split, index, name in group]
            for group in self.equal_images
        ]


def find_unreadable_test(examined: LabelledImages) -> Iterator[Finding]:
    """Unreadable benchmark test images, which a score would leave out."""
    broken = [name for name in _published_test(examined) if name in examined.unreadable]
    yield from about(
        broken,
        "error",
        "unreadable-test",
        f"{number_of(len(broken), 'image')} of the published test cannot be read",
        "Fetch them again: nothing is left out of what others are scored on",
    )


def find_missing_classes(examined: Examined) -> Iterator[Finding]:
    """Classes without training examples or without test examples, of images or of other ``things``."""
    things = examined.things
    thing = things.removesuffix("s")
    train, test = examined.per_class["train"], examined.per_class["test"]
    others = test + examined.per_class["validation"]
    if np.count_nonzero(train) < 2:
        yield Finding(
            "error",
            "one-class",
            f"{np.count_nonzero(train)} of {len(train)} classes have a usable training {thing}",
            f"Give training {things} of at least two classes",
            examined.class_list(train > 0),
        )
    names = examined.class_list((train == 0) & (others > 0))
    is_published = examined.dataset.is_published
    yield from about(
        names,
        # a rare tag is met for the first time in the test of any corpus
        "warning" if is_published or thing == "word" else "error",
        "class-not-in-train",
        f"{number_of(len(names), 'class')} with test {things} but no training {things}",
        "Nothing to do: the splits are the published ones, which others train on as they are"
        if is_published
        else f"Give training {things} for each, remove the class, or correct its name if it is misspelt",
    )
    names = examined.class_list((train == 0) & (others == 0))
    yield from about(
        names,
        "warning",
        "empty-class",
        f"{number_of(len(names), 'class')} without any usable {thing}",
        f"The model will have an output that it never learns; remove the class or give {things}",
    )
    if not test.any():
        yield Finding(
            "warning", "no-test", f"there is no usable test {thing}", f"Give more {things} of each class"
        )
        return
    names = examined.class_list((train > 0) & (test == 0))
    is_drawn = not examined.dataset.test_origin.startswith(OF_THE_SOURCE)
    remedy = f"give more {things}" if is_drawn else f"give test {things}, or correct a misspelt name"
    yield from about(
        names,
        "warning",
        "class-not-in-test",
        f"{number_of(len(names), 'class')} without a test {thing}",
        f"The score says nothing about {'it' if len(names) == 1 else 'them'}; {remedy}",
    )


def find_duplicates(examined: Any) -> Iterator[Finding]:
    """Equal images or texts in two splits, under two labels, or repeated in training."""
    groups = examined.equal_groups
    thing = "image" if examined.things == "images" else "text"
    yield from find_repeated([[(split, name) for split, name, _ in group] for group in groups], thing=thing)
    conflicts = [
        joined([f"{name} ({label})" for _, name, label in group])
        for group in groups
        if len({label for _, _, label in group}) > 1
    ]
    noun = "picture" if thing == "image" else thing
    remedy = "Keep the right label of each"
    yield from counted(conflicts, "warning", "conflicting-labels", noun, "under more than one label", remedy)


def _published_test(examined: LabelledImages) -> tuple[str, ...]:
    """Return the names of a benchmark's test images; none for other data."""
    return examined.dataset.test.names if examined.dataset.is_published else ()


CHECKS: tuple[Callable[[LabelledImages], Iterator[Finding]], ...] = (
    find_unreadable,
    find_unreadable_test,
    find_missing_classes,
    find_similar_names,
    find_uneven_classes,
    find_duplicates,
    find_wrong_suffixes,
    find_conversions,
    find_odd_sizes,
)
"""In the order of a verdict."""
