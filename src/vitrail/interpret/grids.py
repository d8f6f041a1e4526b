"""Values of one grid of an image on another, no value lost: pure functions."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


def spread_cells(
    values: Float[Tensor, "*batch rows columns"], grid: tuple[int, int]
) -> Float[Tensor, "*batch {grid[0]} {grid[1]}"]:
    """Share the value of each cell by the cells of another grid that lie in its place; the sum stays.

    Where a grid is another one merged by whole numbers of cells, the last of them perhaps not full, as models
    merge, pool and reduce their grids, a cell is shared by those that it was merged of. Otherwise each
    cell counts with the share of the place that it covers.

    Args:
        values: one for each cell.
        grid: rows and columns of the result, finer or coarser.

    Example:
        >>> spread_cells(torch.tensor([[4.0, 1.0]]), (1, 3)).tolist()
        [[2.0, 2.0, 1.0]]
    """
    rows, columns = (_shares(*sides).to(values) for sides in zip(values.shape[-2:], grid, strict=True))
    return rows @ values @ columns.T


def shares_of_length(num_cells: int, num_others: int) -> Float[Tensor, "others cells"]:
    """Return the share of each cell's length that each cell of another division of the same line covers."""
    ends = torch.arange(num_cells + 1, dtype=torch.float64) / num_cells
    others = torch.arange(num_others + 1, dtype=torch.float64) / num_others
    first = torch.maximum(others[:-1, None], ends[None, :-1])
    last = torch.minimum(others[1:, None], ends[None, 1:])
    return (last - first).clamp(min=0) * num_cells


def _shares(num_cells: int, num_others: int) -> Float[Tensor, "others cells"]:
    """Return the share of each cell's value that each other cell gets; each column sums to one."""
    fewer, more = min(num_cells, num_others), max(num_cells, num_others)
    step = -(-more // fewer)
    if -(-more // step) != fewer:  # no whole number of cells makes one of the other grid
        return shares_of_length(num_cells, num_others)
    belongs = torch.nn.functional.one_hot(torch.arange(more) // step, fewer).double()  # more fewer
    if num_cells == more:
        return belongs.T
    return belongs / belongs.sum(dim=0)
