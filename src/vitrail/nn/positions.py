"""Positions of a grid, learned or sinusoidal, and their resizing to another grid."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

WAVELENGTH_BASE = 10_000.0  # Vaswani et al. 2017, section 3.5


def sinusoidal_grid_positions(
    grid: tuple[int, int], dim: int, *, device: torch.device | None = None
) -> Float[Tensor, "cells dim"]:
    """Return the sines and cosines of each patch's column, then those of its row, row by row; float32.

    Args:
        dim: a multiple of four.

    Paper: He et al. 2022 (MAE), appendix A; its published code encodes the column first.
    """
    rows, columns = grid
    by_column = sinusoidal_angles(torch.arange(columns, device=device), dim // 2)
    by_row = sinusoidal_angles(torch.arange(rows, device=device), dim // 2)
    column_part = torch.cat((by_column.sin(), by_column.cos()), dim=-1).expand(rows, -1, -1)
    row_part = torch.cat((by_row.sin(), by_row.cos()), dim=-1)[:, None].expand(-1, columns, -1)
    return torch.cat((column_part, row_part), dim=-1).flatten(0, 1)  # cells dim


def resize_grid_table(
    table: Float[Tensor, "tokens dim"],
    old_grid: tuple[int, int],
    new_grid: tuple[int, int],
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
    prefix, cells = table[:num_prefix], table[num_prefix:]
    image = cells.float().T.reshape(1, -1, *old_grid)  # 1 dim rows columns
    image = resize_map(image, new_grid, interpolation=interpolation, antialias=antialias)
    resized = image[0].flatten(1).T.to(table.dtype)  # cells dim
    return torch.cat((prefix, resized))


def resize_map(
    x: Float[Tensor, "batch dim rows columns"],
    grid: tuple[int, int],
    *,
    interpolation: Literal["bicubic", "bilinear"],
    antialias: bool,
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
        grid: tuple[int, int],
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

    def forward(self, grid: tuple[int, int]) -> Float[Tensor, "tokens dim"]:
        return resize_grid_table(
            self.table,
            self.grid,
            grid,
            num_prefix=self.num_prefix,
            interpolation=self.interpolation,
            antialias=self.antialias,
        )


class SinusoidalGridPositions(nn.Module):
    """Fixed sinusoidal positions for any grid; those of prefix tokens are zero (He et al. 2022).

    Args:
        dim: a multiple of four.
    """

    anchor: Tensor

    def __init__(self, dim: int, *, num_prefix: int = 0) -> None:
        super().__init__()
        assert dim % 4 == 0, f"{dim} channels cannot be split into sine and cosine of row and column"
        self.dim, self.num_prefix = dim, num_prefix
        self.register_buffer("anchor", torch.zeros(0), persistent=False)  # knows the module's device

    def forward(self, grid: tuple[int, int]) -> Float[Tensor, "tokens dim"]:
        table = sinusoidal_grid_positions(grid, self.dim, device=self.anchor.device)
        return F.pad(table, (0, 0, self.num_prefix, 0))  # tokens dim


def sinusoidal_angles(positions: Tensor, dim: int) -> Tensor:
    """Return each position times each of ``dim / 2`` falling frequencies, in float32."""
    channels = torch.arange(0, dim, 2, device=positions.device, dtype=torch.float32)
    return positions.float()[:, None] * WAVELENGTH_BASE ** (-channels / dim)
