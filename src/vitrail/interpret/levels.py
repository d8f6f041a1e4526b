"""Attention over several levels of a pyramid, joined to one map of the image."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.interpret.grids import shares_of_length
from vitrail.interpret.record import AttentionMap


def join_levels(levels: Sequence[AttentionMap]) -> AttentionMap:
    """Add the maps of one layer on its finest grid; each cell's weight is spread evenly over its place.

    Rows that sum to one over all levels still do.

    Args:
        levels: maps of the same queries, each over another grid of the same image, without a prefix.
    """
    finest = (max(_grid(each)[0] for each in levels), max(_grid(each)[1] for each in levels))
    joined = torch.stack([_spread(each, finest) for each in levels]).sum(dim=0)
    return levels[0]._replace(weights=joined.flatten(-2), grid=finest)


def with_joined_levels(maps: Sequence[AttentionMap]) -> list[AttentionMap]:
    """Number the levels of layers that have several, and add their sum after them; others stay as they are.

    Args:
        maps: in the order in which they were recorded, the levels of a layer one after the other.
    """
    result: list[AttentionMap] = []
    start = 0
    while start < len(maps):
        end = start + 1
        while end < len(maps) and maps[end].layer == maps[start].layer:
            end += 1
        levels = maps[start:end]
        if len(levels) == 1:
            result.extend(levels)
        else:
            result.extend(
                each._replace(layer=f"{each.layer}, level {number}") for number, each in enumerate(levels)
            )
            result.append(join_levels(levels))
        start = end
    return result


def _grid(recorded: AttentionMap) -> tuple[int, int]:
    assert recorded.grid is not None, "the keys are no image's"
    assert recorded.num_prefix == 0, "a pyramid has no prefix"
    return recorded.grid


def _spread(
    recorded: AttentionMap, finest: tuple[int, int]
) -> Float[Tensor, "batch heads queries rows columns"]:
    weights = recorded.weights.unflatten(-1, _grid(recorded))
    rows, columns = (shares_of_length(*sides) for sides in zip(_grid(recorded), finest, strict=True))
    return rows.to(weights) @ weights @ columns.to(weights).T
