"""Held-out parts have the mixture of the whole, and are the same whenever they are drawn."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vitrail.data.splits import stratified_split


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
