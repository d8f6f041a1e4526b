from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from vitrail.train.objective import TensorBatch


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
