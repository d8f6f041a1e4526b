"""Pairs stay together when they are divided, and are told apart by their content."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from vitrail.tasks.translation.dataset import PairDataset, PairSplit

SOURCES = ("a cat", "a dog", "a bird")
TARGETS = ("eine Katze", "ein Hund", "ein Vogel")
NAMES = ("train.en:1", "train.en:2", "train.en:3")
NOTHING = PairSplit([], [], [])


def dataset(train: PairSplit, test: PairSplit = NOTHING) -> PairDataset:
    parts = {"train": train, "validation": NOTHING, "test": test}
    return PairDataset(source="pets", format="two text files", languages=("en", "de"), **parts)


def test_taking_keeps_both_sides_and_the_name_together() -> None:
    split = PairSplit(SOURCES, TARGETS, NAMES)
    for indices in ([2, 0], np.array([2, 0])):
        part = split.take(indices)
        assert len(part) == 2
        assert part.sources == ("a bird", "a cat")
        assert part.targets == ("ein Vogel", "eine Katze")
        assert part.names == ("train.en:3", "train.en:1")


def test_lists_of_different_length_are_our_own_fault() -> None:
    with pytest.raises(AssertionError, match="differ in length"):
        PairSplit(SOURCES, TARGETS[:2], NAMES)


def test_the_fingerprint_follows_every_text_and_name() -> None:
    prints = {
        PairSplit(*content).fingerprint
        for content in [
            (SOURCES, TARGETS, NAMES),
            (("A cat", *SOURCES[1:]), TARGETS, NAMES),
            (SOURCES, ("eine Katz", *TARGETS[1:]), NAMES),
            (SOURCES, TARGETS, ("x", *NAMES[1:])),
            (TARGETS, SOURCES, NAMES),
            (SOURCES[:2], TARGETS[:2], NAMES[:2]),
        ]
    }
    assert len(prints) == 6
    assert PairSplit(list(SOURCES), TARGETS, NAMES).fingerprint in prints


def test_the_fingerprint_of_a_data_set_follows_languages_and_splits() -> None:
    split = PairSplit(SOURCES, TARGETS, NAMES)
    one = dataset(split)
    turned = replace(one, languages=("de", "en"))
    assert len({one.fingerprint, turned.fingerprint, dataset(NOTHING, split).fingerprint}) == 3
    assert one.fingerprint == dataset(split.take([0, 1, 2])).fingerprint


def test_names_are_left_out_of_every_split() -> None:
    split = PairSplit(SOURCES, TARGETS, NAMES)
    whole = dataset(split, PairSplit(["x"], ["y"], ["test.en:1"]))
    part = whole.without({"train.en:2", "test.en:1", "unknown"})
    assert part.train.names == ("train.en:1", "train.en:3")
    assert len(part.test) == 0
    assert part.languages == ("en", "de")
    assert whole.without(frozenset()) is whole
