"""Attention maps on coarser grids, for looking at them: a fine map has more values than a screen."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from vitrail.interpret.record import AttentionMap


def coarsen(recorded: AttentionMap, longest: int) -> AttentionMap:
    """Join squares of cells until neither grid is longer than that; a map that is small enough stays.

    The queries of a square are averaged and its keys added, so that rows that sum to one still do. Queries
    that are no image's, such as those for boxes, stay as they are.

    Args:
        recorded: the map of a layer whose keys are an image's, all queries recorded.
        longest: greatest number of rows and of columns.
    """
    assert recorded.grid is not None, "the keys are no image's"
    query_side = 1 if recorded.query_grid is None else -(-max(recorded.query_grid) // longest)
    key_side = -(-max(recorded.grid) // longest)
    weights = recorded.weights
    if recorded.query_grid is not None and query_side > 1:
        columns = weights.transpose(-2, -1)
        num_prefix = columns.shape[-1] - math.prod(recorded.query_grid)
        weights = _join(columns, recorded.query_grid, num_prefix, query_side, add=False).transpose(-2, -1)
    if key_side > 1:
        weights = _join(weights, recorded.grid, recorded.num_prefix, key_side, add=True)
    return recorded._replace(
        weights=weights.contiguous(),
        grid=_joined(recorded.grid, key_side),
        query_grid=None if recorded.query_grid is None else _joined(recorded.query_grid, query_side),
    )


def _join(
    rows: Float[Tensor, "batch heads rows cells"],
    grid: tuple[int, int],
    num_prefix: int,
    side: int,
    *,
    add: bool,
) -> Float[Tensor, "batch heads rows joined"]:
    """Join the squares of each row's grid; at its end a square holds what is left."""
    cells = rows[..., num_prefix:].reshape(-1, rows.shape[-2], *grid)  # b*h rows y x
    pooled = F.avg_pool2d(cells, side, ceil_mode=True, divisor_override=1 if add else None)
    return torch.cat((rows[..., :num_prefix], pooled.reshape(*rows.shape[:-1], -1)), dim=-1)


def _joined(grid: tuple[int, int], side: int) -> tuple[int, int]:
    return -(-grid[0] // side), -(-grid[1] // side)
