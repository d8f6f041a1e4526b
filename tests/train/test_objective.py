"""Samples that two batches or processes saw count once, wherever they are collected."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from vitrail.train.objective import TensorBatch, first_of_each


class Boxes(NamedTuple):
    corners: Tensor
    labels: Tensor


@dataclass(frozen=True)
class SomeBatch(TensorBatch):
    images: Tensor
    boxes: Boxes
    names: tuple[str, ...]


def make_batch():
    return SomeBatch(torch.ones(3, 2), Boxes(torch.zeros(5, 4), torch.zeros(5)), ("a", "b", "c"))


def test_every_tensor_moves_and_nothing_else():
    moved = make_batch().to(torch.device("meta"))
    assert type(moved) is SomeBatch
    assert type(moved.boxes) is Boxes
    assert {each.device.type for each in (moved.images, *moved.boxes)} == {"meta"}
    assert moved.names == ("a", "b", "c")


def test_it_is_as_long_as_its_first_field():
    assert len(make_batch()) == 3


def test_the_first_of_equal_keys_is_kept_in_the_order_of_the_keys() -> None:
    keys = torch.tensor([7, 2, 7, 3, 2, 11, 3])
    places = first_of_each(keys)
    assert places.tolist() == [keys.tolist().index(key) for key in sorted(set(keys.tolist()))]


def test_nothing_has_no_first() -> None:
    assert first_of_each(torch.empty(0, dtype=torch.int64)).tolist() == []
