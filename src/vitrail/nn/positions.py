"""Learned positions of a grid, and their resizing to another grid."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.nn.tokens import FeatureMap, Grid


def resize_grid_table(
    table: Float[Tensor, "tokens dim"],
    old_grid: Grid,
    new_grid: Grid,
    *,
    num_prefix: int = 0,
    interpolation: Literal["bicubic", "bilinear"] = "bicubic",
    antialias: bool = True,
) -> Float[Tensor, "new_tokens dim"]:
    """Interpolate a table of grid positions to another grid; prefix tokens keep theirs.

    Computed in float32, returned in the table's type; a table that already fits is returned as it is.

    Args:
        table: rows of the prefix tokens, then those of the grid, row by row.
        antialias: low-pass filter when downsampling.

    Paper: Dosovitskiy et al. 2021, section 3.2, says "2D interpolation".
    """
    assert table.shape[0] == num_prefix + old_grid[0] * old_grid[1], "the table does not hold that grid"
    if old_grid == new_grid:
        return table
    prefix, patches = table[:num_prefix], table[num_prefix:]
    image = patches.float().T.reshape(1, -1, *old_grid)  # 1 dim rows columns
    image = resize_map(image, new_grid, interpolation=interpolation, antialias=antialias)
    resized = image[0].flatten(1).T.to(table.dtype)  # patches dim
    return torch.cat((prefix, resized))


def resize_map(
    x: FeatureMap, grid: Grid, *, interpolation: Literal["bicubic", "bilinear"], antialias: bool
) -> Float[Tensor, "batch dim {grid[0]} {grid[1]}"]:
    """Interpolate a feature map, working around a bug of torch's antialiasing.

    With antialiasing, torch 2.13 gives a result of one column the same value in all of its rows; it is
    right for one row, so such a feature map is transposed.
    """
    if antialias and grid[1] == 1:
        return F.interpolate(x.mT, size=(1, grid[0]), mode=interpolation, antialias=True).mT
    return F.interpolate(x, size=grid, mode=interpolation, antialias=antialias)


class LearnedGridPositions(nn.Module):
    """Learned positions of prefix tokens and of a grid, resized to other grids by ``resize_grid_table``."""

    def __init__(
        self,
        grid: Grid,
        dim: int,
        *,
        num_prefix: int = 0,
        interpolation: Literal["bicubic", "bilinear"] = "bicubic",
        antialias: bool = True,
    ) -> None:
        super().__init__()
        self.grid, self.num_prefix = grid, num_prefix
        self.interpolation, self.antialias = interpolation, antialias
        self.table = nn.Parameter(torch.zeros(num_prefix + grid[0] * grid[1], dim))
        nn.init.trunc_normal_(self.table, std=0.02)  # Touvron et al. 2021, published code

    def forward(self, grid: Grid) -> Float[Tensor, "tokens dim"]:
        return resize_grid_table(
            self.table,
            self.grid,
            grid,
            num_prefix=self.num_prefix,
            interpolation=self.interpolation,
            antialias=self.antialias,
        )
