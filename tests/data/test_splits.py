"""Held-out parts have the mixture of the whole, and are the same whenever they are drawn."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vitrail.data.findings import Finding
from vitrail.data.settings import DataSettings
from vitrail.data.splits import divide, stratified_split


@settings(max_examples=60, deadline=None)
@given(
    counts=st.lists(st.integers(0, 40), min_size=1, max_size=6),
    fraction=st.floats(0.01, 0.9),
    seed=st.integers(0, 100),
)
def test_a_split_divides_every_class_in_proportion(counts: list[int], fraction: float, seed: int) -> None:
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(counts)), counts))
    kept, held = stratified_split(labels, fraction, seed=seed)
    assert sorted([*kept, *held]) == list(range(len(labels)))
    for label, count in enumerate(counts):
        number = int((labels[held] == label).sum())
        assert abs(number - count * fraction) <= 1
        if count >= 2:
            assert 1 <= number <= count - 1
        else:
            assert number == 0


def test_equal_classes_give_equal_parts() -> None:
    _, held = stratified_split(np.repeat(np.arange(10), 500), 0.2, seed=0)
    assert np.bincount(np.repeat(np.arange(10), 500)[held]).tolist() == [100] * 10


def test_the_seed_alone_decides() -> None:
    labels = np.arange(60) % 3
    one, same, other = (stratified_split(labels, 0.3, seed=seed)[1] for seed in (1, 1, 2))
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)


@pytest.mark.parametrize(("maximum", "expected"), [(10, 10), (3, 3), (1000, 50), (0, 0)])
def test_the_number_held_out_is_bounded(maximum: int, expected: int) -> None:
    _, held = stratified_split(np.arange(100) % 2, 0.5, seed=0, max_held=maximum)
    # two classes give at least one each
    assert len(held) == expected


def test_nothing_is_held_out_of_nothing() -> None:
    kept, held = stratified_split(np.zeros(0, dtype=np.int64), 0.2, seed=0)
    assert (len(kept), len(held)) == (0, 0)


KNOWN = Finding("info", "known", "what was known", "Nothing to do")


@dataclass(frozen=True)
class Numbers:
    values: tuple[int, ...]
    names: ClassVar = ()
    fingerprint: ClassVar = ""

    def __len__(self):
        return len(self.values)

    @property
    def contents(self):
        return [str(value) for value in self.values]

    def take(self, indices):
        return Numbers(tuple(self.values[place] for place in indices))


def last_ones(split, fraction, seed, max_held):
    count = min(round(fraction * len(split)), len(split) if max_held is None else max_held)
    return np.arange(len(split) - count), np.arange(len(split) - count, len(split))


def divided(splits, **changes):
    settings = DataSettings(source="", test_fraction=0.2, validation_fraction=0.25, split_seed=3)
    splits = {name: Numbers(tuple(values)) for name, values in splits.items()}
    fields = divide(splits, [KNOWN], settings, hold_out=last_ones, **changes)
    return SimpleNamespace(**fields)


def test_both_are_drawn_of_the_training_split_the_test_first():
    found = divided({"train": range(10)}, things="pairs", drawn=", at random")
    assert found.test.values == (8, 9)
    assert found.validation.values == (6, 7)
    assert found.train.values == (0, 1, 2, 3, 4, 5)
    assert found.test_origin == "0.2 of the source, at random, seed 3"
    assert found.validation_origin == "2 of the training pairs, at random, seed 3"
    assert found.findings == (KNOWN,)


def test_copies_follow_the_first_of_them():
    found = divided({"train": (*range(10), 8, 8, 0, 6)})
    assert found.test.values == (8, 9, 8, 8)
    assert found.validation.values == (6, 7, 6)
    assert found.train.values == (0, 1, 2, 3, 4, 5, 0)


def test_what_the_source_brings_stays_as_it_is():
    found = divided({"train": [1], "validation": [2], "test": [3]})
    assert (found.train.values, found.validation.values, found.test.values) == ((1,), (2,), (3,))
    assert found.test_origin == found.validation_origin == "from the source"


def test_a_lone_validation_split_becomes_the_test():
    found = divided({"train": range(8), "validation": [9]})
    assert found.test.values == (9,)
    assert found.validation.values == (6, 7)
    assert [each.check for each in found.findings] == ["known", "validation-as-test"]


def test_a_source_of_nothing_but_a_test_has_an_empty_training_split():
    found = divided({"test": [1, 2]})
    assert found.train.values == found.validation.values == ()


@pytest.mark.parametrize(("max_test", "count", "is_reported"), [(1, 1, True), (2, 2, False), (5, 2, False)])
def test_a_test_of_a_large_source_is_bounded(max_test, count, is_reported):
    found = divided({"train": range(10)}, max_test=max_test)
    assert len(found.test) == count
    assert ("bounded-test" in [each.check for each in found.findings]) == is_reported
