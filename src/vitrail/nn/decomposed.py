"""Decomposed relative positions: a query-dependent bias of the scores, the sum of one term per axis."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

Grid = tuple[int, int]


def relative_steps(
    num_queries: int, num_keys: int, *, device: torch.device | None = None
) -> Int[Tensor, "queries keys"]:
    """Return the relative position of each query and key along one axis, from 0 for the last key on.

    Both span the same length; positions count the steps of the finer one, rounded down, and are below
    ``2 * max(num_queries, num_keys) - 1``.

    Paper: Li et al. 2022 (MViTv2), section 4.1; its published code scales the coarser axis.

    Example:
        >>> relative_steps(4, 2).tolist()
        [[2, 0], [3, 1], [4, 2], [5, 3]]
    """
    finer = max(num_queries, num_keys)
    queries = torch.arange(num_queries, device=device) * finer // num_queries
    keys = torch.arange(num_keys - 1, -1, -1, device=device) * finer // num_keys
    return queries[:, None] + keys


def resize_axis_table(table: Float[Tensor, "positions dim"], length: int) -> Float[Tensor, "{length} dim"]:
    """Interpolate a table of one axis' relative positions linearly to ``length`` rows.

    Computed in float32, returned in the table's type; a table that already fits is returned as it is.
    Distance zero stays in the middle.
    """
    if len(table) == length:
        return table
    resized = F.interpolate(table.float().T[None], size=length, mode="linear")  # 1 dim positions
    return resized[0].T.to(table.dtype)


class DecomposedRelativePositions(nn.Module):
    """Learn a vector for each row distance and each column distance; their products with a query are biases.

    ``bias[i, j] = q_i . R_row[row(i) - row(j)] + q_i . R_column[column(i) - column(j)]``, where the query is
    not scaled. All heads share the vectors.

    Args:
        grid: native rows and columns of queries or keys, whichever are more; interpolated to others.

    Paper: Li et al. 2022 (MViTv2), equations 3 and 4. Departs from the paper: without the axis of time, and
    the products are not divided by the root of the width, as in the published code.
    """

    def __init__(self, grid: Grid, head_dim: int) -> None:
        super().__init__()
        self.by_row = nn.Parameter(torch.zeros(2 * grid[0] - 1, head_dim))
        self.by_column = nn.Parameter(torch.zeros(2 * grid[1] - 1, head_dim))
        for table in (self.by_row, self.by_column):
            nn.init.trunc_normal_(table, std=0.02)  # Li et al. 2022, published code

    def forward(
        self, query: Float[Tensor, "batch heads queries dim"], *, query_grid: Grid, key_grid: Grid
    ) -> Float[Tensor, "batch heads queries keys"]:
        rows = _vectors(self.by_row, query_grid[0], key_grid[0]).to(query.dtype)
        columns = _vectors(self.by_column, query_grid[1], key_grid[1]).to(query.dtype)
        cells = query.reshape(*query.shape[:2], *query_grid, -1)  # b h rows columns d
        by_row = torch.einsum("bhrcd,rkd->bhrck", cells, rows)
        by_column = torch.einsum("bhrcd,ckd->bhrck", cells, columns)
        # As one product with zeros and ones: an addition that repeats both takes 2 to 13 times as long.
        bias = torch.cat((by_row, by_column), dim=-1) @ _places(key_grid, bias_like=by_row)
        return bias.flatten(2, 3)  # b h queries keys

    def extra_repr(self) -> str:
        grid = ((len(self.by_row) + 1) // 2, (len(self.by_column) + 1) // 2)
        return f"grid={grid}, head_dim={self.by_row.shape[1]}"


def _places(key_grid: Grid, *, bias_like: Tensor) -> Tensor:
    """Return ones where a row, or after them a column, is that of a key: rows + columns, keys."""
    rows, columns = key_grid
    in_row = torch.eye(rows).repeat_interleave(columns, dim=1)
    in_column = torch.eye(columns).repeat(1, rows)
    return torch.cat((in_row, in_column)).to(bias_like)


def _vectors(table: Tensor, num_queries: int, num_keys: int) -> Tensor:
    resized = resize_axis_table(table, 2 * max(num_queries, num_keys) - 1)
    return resized[relative_steps(num_queries, num_keys, device=table.device)]  # queries keys d
