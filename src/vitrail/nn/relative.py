"""Relative positions as a bias of the attention scores, over a grid.

The modules map a grid, or a window, to the bias of every pair of tokens, which is added to the scaled scores.
Each is also a position scheme of ``Attention``. A relative position is the query's minus the key's,
and pairs with a prefix token get a bias of zero where the class does not say otherwise.
"""

from __future__ import annotations

import math
from typing import Protocol

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from vitrail.nn.positions import resize_grid_table
from vitrail.nn.tokens import Grid

GridBias = Float[Tensor, "1 heads tokens tokens"]

TABLE_STD = 0.02  # Liu et al. 2021 (Swin), published code
LOG_SPAN = 8.0  # Liu et al. 2022 (Swin V2), published code: coordinates span -8 to 8 before the logarithm
MAX_BIAS = 16.0  # Liu et al. 2022 (Swin V2), published code


class PositionScheme(Protocol):
    """Encodes positions in attention, by changing queries and keys or by a bias of the scores."""

    def place(self, query: Tensor, key: Tensor, *, grid: Grid | None) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return placed queries and keys (batch heads tokens dim), and a bias of the scores or None."""

    def place_newest(self, query_key: Tensor, *, num_before: int) -> tuple[Tensor, Tensor | None]:
        """Return the newest queries and keys with their position, and a bias (1 heads 1 steps) or None.

        Only schemes of sequences, which are decoded step by step, have this.

        Args:
            query_key: the queries, then the keys (2 sentences heads hypotheses dim).
            num_before: earlier tokens of each hypothesis.
        """


def relative_index(grid: Grid, *, device: torch.device | None = None) -> Int[Tensor, "patches patches"]:
    """Return, for each pair of patches, the row of a table of all ``(2r-1)(2c-1)`` relative positions.

    The table holds the positions row by row, from ``-(r-1), -(c-1)`` on.

    Paper: Liu et al. 2021 (Swin), section 3.2, "relative position bias".

    Example:
        >>> relative_index((1, 3)).tolist()
        [[2, 1, 0], [3, 2, 1], [4, 3, 2]]
    """
    rows, columns = grid
    down, right = (torch.arange(length, device=device) for length in grid)
    by_row = down[:, None] - down + (rows - 1)  # rows rows
    by_column = right[:, None] - right + (columns - 1)  # columns columns
    index = by_row[:, None, :, None] * (2 * columns - 1) + by_column[None, :, None, :]
    return index.flatten(2).flatten(0, 1)  # patches patches


def resize_relative_table(
    table: Float[Tensor, "positions heads"], old_grid: Grid, new_grid: Grid
) -> Float[Tensor, "new_positions heads"]:
    """Interpolate a table of relative positions to another grid; distance zero stays in the middle.

    Bicubic, computed in float32, returned in the table's type; a table that already fits is returned as it
    is.

    Args:
        table: one row per relative position of the old grid, in the order of ``relative_index``.

    Paper: Liu et al. 2021 (Swin), section 3.2, last sentence.
    """
    if old_grid == new_grid:
        return table
    before, after = ((2 * grid[0] - 1, 2 * grid[1] - 1) for grid in (old_grid, new_grid))
    image = table.float().T.reshape(1, -1, *before)  # 1 heads rows columns
    image = F.interpolate(image, size=after, mode="bicubic")
    return image[0].flatten(1).T.to(table.dtype)


class GridBiasScheme(nn.Module):
    """A position scheme whose call maps a grid to the bias of the scores."""

    def __init__(self, grid: Grid, *, num_prefix: int) -> None:
        super().__init__()
        self.grid, self.num_prefix = grid, num_prefix

    def place(self, query: Tensor, key: Tensor, *, grid: Grid | None) -> tuple[Tensor, Tensor, Tensor]:
        assert grid is not None, "positions of a grid need the grid"
        return query, key, self(grid)

    def extra_repr(self) -> str:
        return f"grid={self.grid}, num_prefix={self.num_prefix}"


class GridRelativeBias(GridBiasScheme):
    """Learn one bias for each head and relative position of a grid or window.

    Args:
        grid: native rows and columns; the table is interpolated to others.

    Paper: Liu et al. 2021 (Swin), equation 4.
    """

    index: Tensor

    def __init__(self, grid: Grid, num_heads: int, *, num_prefix: int = 0) -> None:
        super().__init__(grid, num_prefix=num_prefix)
        self.table = nn.Parameter(torch.zeros((2 * grid[0] - 1) * (2 * grid[1] - 1), num_heads))
        nn.init.trunc_normal_(self.table, std=TABLE_STD)
        self.register_buffer("index", relative_index(grid), persistent=False)

    def forward(self, grid: Grid) -> GridBias:
        table = resize_relative_table(self.table, self.grid, grid)
        return spread_table(table, _index_for(self, grid), self.num_prefix)


class ContinuousRelativeBias(GridBiasScheme):
    """Continuous relative position bias: an MLP on log-spaced relative positions.

    ``bias = 16 sigmoid(mlp(sign(d) log2(1 + |8 d|) / 3))`` with ``d`` the relative position in rows and in
    columns, divided by the greatest one of the native grid. Another grid keeps that divisor, so neighbours
    keep their bias and only greater distances are new.

    Args:
        grid: native rows and columns, or those of pretraining.

    Paper: Liu et al. 2022 (Swin V2), equations 3 and 4; the sigmoid is in the published code only.
    """

    index: Tensor
    coordinates: Tensor

    def __init__(self, grid: Grid, num_heads: int, *, num_prefix: int = 0) -> None:
        super().__init__(grid, num_prefix=num_prefix)
        self.expand = nn.Linear(2, 512)  # Liu et al. 2022, published code
        self.contract = nn.Linear(512, num_heads, bias=False)
        for layer in (self.expand, self.contract):
            nn.init.trunc_normal_(layer.weight, std=TABLE_STD)
        nn.init.zeros_(self.expand.bias)
        self.register_buffer("index", relative_index(grid), persistent=False)
        self.register_buffer("coordinates", self._coordinates(grid, None), persistent=False)

    def forward(self, grid: Grid) -> GridBias:
        coordinates = self.coordinates
        if grid != self.grid:
            coordinates = self._coordinates(grid, coordinates.device).to(coordinates.dtype)
        table = MAX_BIAS * self.contract(self.expand(coordinates).relu()).sigmoid()  # positions heads
        return spread_table(table, _index_for(self, grid), self.num_prefix)

    def _coordinates(self, grid: Grid, device: torch.device | None) -> Float[Tensor, "positions 2"]:
        """Return the log-spaced relative positions of a grid, in the order of ``relative_index``."""
        axes = [
            torch.arange(1 - length, length, device=device, dtype=torch.float32) / max(native - 1, 1)
            for length, native in zip(grid, self.grid, strict=True)
        ]
        linear = LOG_SPAN * torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1).flatten(0, 1)
        return linear.sign() * linear.abs().add(1).log2() / math.log2(LOG_SPAN)


class PairwiseBias(GridBiasScheme):
    """Learn one bias for each head and pair of tokens, inside the softmax: ``q_i k_j / sqrt(d) + p_ij``.

    Args:
        grid: native rows and columns; for others, the queries' and then the keys' positions are interpolated.
        num_prefix: tokens before the grid; pairs with them have a bias of their own.

    Paper: Ke et al. 2021, section 3.1, adds a term of two positions to the content's.
    Departs from the paper: the term is free for each pair instead of a product of two position vectors.
    """

    def __init__(self, grid: Grid, num_heads: int, *, num_prefix: int = 0) -> None:
        super().__init__(grid, num_prefix=num_prefix)
        num_tokens = num_prefix + grid[0] * grid[1]
        self.table = nn.Parameter(torch.zeros(num_heads, num_tokens, num_tokens))
        nn.init.trunc_normal_(self.table, std=TABLE_STD)

    def forward(self, grid: Grid) -> GridBias:
        table: Tensor = self.table
        if grid != self.grid:
            # Each pass interpolates the last axis and moves it before the other.
            for _ in range(2):
                by_place = table.flatten(0, 1).T  # tokens heads*others
                by_place = resize_grid_table(by_place, self.grid, grid, num_prefix=self.num_prefix)
                table = by_place.reshape(-1, *table.shape[:2]).transpose(0, 1)  # heads tokens others
        return table[None]


def spread_table(table: Tensor, index: Tensor, num_prefix: int = 0) -> Tensor:
    """Look up the bias of each pair of tokens, zero for pairs with a prefix token."""
    pairs = table.T.contiguous().index_select(1, index.flatten())  # heads pairs
    bias = pairs.reshape(1, -1, *index.shape)  # 1 heads queries keys
    return F.pad(bias, (num_prefix, 0, num_prefix, 0)) if num_prefix else bias


def _index_for(bias: GridRelativeBias | ContinuousRelativeBias, grid: Grid) -> Tensor:
    return bias.index if grid == bias.grid else relative_index(grid, device=bias.index.device)
