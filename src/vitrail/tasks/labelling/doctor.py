"""Checks of labelled texts before training: errors, pitfalls, and facts worth knowing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from vitrail.data.findings import Finding, Verdict, counted, judge, number_of
from vitrail.data.image_checks import LEAK_REMEDY, find_similar_names, find_uneven_classes
from vitrail.tasks.labelling.dataset import TextDataset

MAX_WORDS = 400  # a longer text is cut off by the usual data.max_length


@dataclass(frozen=True)
class ExaminedTexts:
    """A data set with the inspection of each text."""

    dataset: TextDataset

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.dataset.class_names

    @property
    def things(self) -> str:
        """What has a class."""
        return "texts" if self.dataset.labels == "sentence" else "words"

    @cached_property
    def empty(self) -> frozenset[str]:
        """Names of texts without a word."""
        splits = self.dataset.splits.values()
        return frozenset(
            name
            for split in splits
            for name, parts in zip(split.names, split.parts, strict=True)
            if not any(part.strip() for part in parts)
        )

    @cached_property
    def per_class(self) -> dict[str, np.ndarray]:
        """For each split, the number of usable examples of each class."""
        usable = self.dataset.without(self.empty).splits
        return {name: split.count_per_class(len(self.class_names)) for name, split in usable.items()}

    @property
    def counts(self) -> dict[str, Any]:
        return {
            "texts": {name: len(split) for name, split in self.dataset.splits.items()},
            "classes": len(self.class_names),
            "labels": self.dataset.labels,
            "format": self.dataset.format,
            "per_class": {
                name: {split: int(numbers[label]) for split, numbers in self.per_class.items()}
                for label, name in enumerate(self.class_names)
            },
        }


def check_texts(dataset: TextDataset) -> Verdict:
    """Examine every text of every split; return findings, errors first, and the texts to leave out."""
    examined = ExaminedTexts(dataset)
    return judge(dataset, examined, CHECKS, exclude=examined.empty)


def find_empty(examined: ExaminedTexts) -> Iterator[Finding]:
    """Texts without a word."""
    yield from counted(
        sorted(examined.empty), "warning", "empty-texts", "text", "without a word", "They are left out"
    )


def find_long(examined: ExaminedTexts) -> Iterator[Finding]:
    """Texts that the model will not read to their end."""
    long = [
        name
        for split in examined.dataset.splits.values()
        for index, name in enumerate(split.names)
        if len(split.text(index).split()) > MAX_WORDS
    ]
    remedy = "Raise data.max_length to read them to the end, or divide them"
    yield from counted(long, "warning", "long-texts", "text", f"of more than {MAX_WORDS} words", remedy)


def find_missing_classes(examined: ExaminedTexts) -> Iterator[Finding]:
    """Classes without training or test examples."""
    train, test = examined.per_class["train"], examined.per_class["test"]
    names = np.array(examined.class_names)
    if np.count_nonzero(train) < 2:
        message = f"training texts have {number_of(int(np.count_nonzero(train)), 'label')}"
        yield Finding("error", "one-class", message, "Give training texts of at least two classes")
    # a rare tag is met for the first time in the test of any corpus
    severity: Any = "warning" if examined.dataset.labels == "words" else "error"
    others = test + examined.per_class["validation"]
    unlearned, remedy = (
        names[(train == 0) & (others > 0)].tolist(),
        "Give training texts, or correct the name",
    )
    message = "with test examples but no training examples"
    yield from counted(unlearned, severity, "class-not-in-train", "class", message, remedy)
    if not test.any():
        yield Finding("warning", "no-test", "there is no usable test text", "Give more texts of each class")


def find_duplicates(examined: ExaminedTexts) -> Iterator[Finding]:
    """Equal texts in two splits, or with different labels."""
    groups: dict[tuple[str, ...], list[tuple[str, str, bytes]]] = defaultdict(list)
    for split_name, split in examined.dataset.splits.items():
        for parts, labels, name in zip(split.parts, split.labels, split.names, strict=True):
            if name not in examined.empty:
                groups[tuple(part.casefold() for part in parts)].append((split_name, name, labels.tobytes()))
    repeated = [members for members in groups.values() if len(members) > 1]
    for later, earlier in (("test", "train"), ("validation", "train")):
        copies = [
            name
            for members in repeated
            if any(split == earlier for split, _, _ in members)
            for split, name, _ in members
            if split == later
        ]
        message, remedy = f"that is also a {earlier} text", f"This inflates the score; {LEAK_REMEDY}"
        yield from counted(copies, "warning", f"{later}-in-{earlier}", f"{later} text", message, remedy)
    conflicts = [
        " = ".join(name for _, name, _ in members)
        for members in repeated
        if len({labels for _, _, labels in members}) > 1
    ]
    message, remedy = "under more than one label", "Keep the right label of each"
    yield from counted(conflicts, "warning", "conflicting-labels", "text", message, remedy)


CHECKS: tuple[Callable[[Any], Iterator[Finding]], ...] = (
    find_empty,
    find_missing_classes,
    find_similar_names,
    find_uneven_classes,
    find_duplicates,
    find_long,
)
"""In the order of a verdict."""
