"""Samples that two batches or processes saw count once, wherever they are collected."""

from __future__ import annotations

import torch

from vitrail.train.objective import first_of_each


def test_the_first_of_equal_keys_is_kept_in_the_order_of_the_keys() -> None:
    keys = torch.tensor([7, 2, 7, 3, 2, 11, 3])

    places = first_of_each(keys)

    assert places.tolist() == [keys.tolist().index(key) for key in sorted(set(keys.tolist()))]


def test_nothing_has_no_first() -> None:
    assert first_of_each(torch.empty(0, dtype=torch.int64)).tolist() == []
