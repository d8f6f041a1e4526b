"""Resampling of maps between grids: pooling, lossless spreading, and joining of pyramid levels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from vitrail.interpret.record import AttentionMap


def spread_patches(
    values: Float[Tensor, "*batch rows columns"], grid: tuple[int, int]
) -> Float[Tensor, "*batch {grid[0]} {grid[1]}"]:
    """Distribute each patch's value to the patches of another grid at its location, preserving the sum.

    Where one grid is a merged, pooled or reduced version of the other by whole factors (possibly incomplete
    at the border), a patch is shared by those that it was merged from. Otherwise patches are weighted by
    overlap.

    Example:
        >>> spread_patches(torch.tensor([[4.0, 1.0]]), (1, 3)).tolist()
        [[2.0, 2.0, 1.0]]
    """
    rows, columns = (_shares(*sides).to(values) for sides in zip(values.shape[-2:], grid, strict=True))
    return rows @ values @ columns.T


def shares_of_length(num_patches: int, num_others: int) -> Float[Tensor, "others patches"]:
    """Return the fraction of each patch's length that each patch of another division of the line covers."""
    ends = torch.arange(num_patches + 1, dtype=torch.float64) / num_patches
    others = torch.arange(num_others + 1, dtype=torch.float64) / num_others
    first = torch.maximum(others[:-1, None], ends[None, :-1])
    last = torch.minimum(others[1:, None], ends[None, 1:])
    return (last - first).clamp(min=0) * num_patches


def _shares(num_patches: int, num_others: int) -> Float[Tensor, "others patches"]:
    """Return the fraction of each patch's value that each other patch gets; columns sum to one."""
    fewer, more = min(num_patches, num_others), max(num_patches, num_others)
    step = -(-more // fewer)
    if -(-more // step) != fewer:  # the patches are not merged by a whole factor
        return shares_of_length(num_patches, num_others)
    belongs = F.one_hot(torch.arange(more) // step, fewer).double()  # more fewer
    if num_patches == more:
        return belongs.T
    return belongs / belongs.sum(dim=0)


def fit_grid(size: tuple[int, int], longest: int) -> tuple[int, int]:
    """Return the finest grid of square patches with at most ``longest`` to a side."""
    side = -(-max(size) // longest)
    return -(-size[0] // side), -(-size[1] // side)


def coarsen(recorded: AttentionMap, longest: int) -> AttentionMap:
    """Pool a map until no side of its grids exceeds ``longest``.

    Queries are averaged and keys summed, so that rows still sum to one. Queries without a grid, such as a
    detector's, stay as they are.

    Args:
        recorded: the map of a layer with image keys, all queries recorded.
        longest: maximum number of rows and of columns.
    """
    assert recorded.grid is not None, "the keys are not of an image"
    weights, grid = recorded.weights, fit_grid(recorded.grid, longest)
    query_grid = recorded.query_grid
    if query_grid is not None and query_grid != (joined := fit_grid(query_grid, longest)):
        counts = spread_patches(torch.ones(query_grid, device=weights.device), joined).flatten()
        num_prefix = weights.shape[-2] - math.prod(query_grid)
        columns = _spread_rows(weights.transpose(-2, -1), query_grid, num_prefix, joined)
        columns[..., num_prefix:] /= counts
        weights, query_grid = columns.transpose(-2, -1), joined
    if grid != recorded.grid:
        weights = _spread_rows(weights, recorded.grid, recorded.num_prefix, grid)
    return recorded._replace(weights=weights.contiguous(), grid=grid, query_grid=query_grid)


def _spread_rows(
    rows: Tensor, grid: tuple[int, int], num_prefix: int, target: tuple[int, int]
) -> Float[Tensor, "batch heads rows joined"]:
    patches = spread_patches(rows[..., num_prefix:].unflatten(-1, grid), target).flatten(-2)
    return torch.cat((rows[..., :num_prefix], patches), dim=-1)


def join_levels(levels: Sequence[AttentionMap]) -> AttentionMap:
    """Sum the maps of one layer on its finest grid; each patch's weight is spread evenly.

    Rows that sum to one over all levels still do.

    Args:
        levels: maps of the same queries over different grids of the same image, without a prefix.
    """
    grids = [each.grid for each in levels if each.grid is not None and not each.num_prefix]
    assert len(grids) == len(levels), "the keys are those of an image, without a prefix"
    finest = (max(rows for rows, _ in grids), max(columns for _, columns in grids))
    spread = []
    for each, grid in zip(levels, grids, strict=True):
        weights = each.weights.unflatten(-1, grid)
        rows, columns = (shares_of_length(*sides).to(weights) for sides in zip(grid, finest, strict=True))
        spread.append(rows @ weights @ columns.T)
    return levels[0]._replace(weights=torch.stack(spread).sum(dim=0).flatten(-2), grid=finest)


def with_joined_levels(maps: Sequence[AttentionMap]) -> list[AttentionMap]:
    """Number the levels of multi-level layers, and append their sum; others stay as they are.

    Args:
        maps: in recorded order, the levels of a layer adjacent.
    """
    result: list[AttentionMap] = []
    for layer, group in groupby(maps, key=attrgetter("layer")):
        levels = list(group)
        if len(levels) > 1:
            result += [each._replace(layer=f"{layer}, level {n}") for n, each in enumerate(levels)]
            levels = [join_levels(levels)]
        result += levels
    return result
