"""Pooling attention: with prefix tokens (MViT), and with decomposed relative positions (MViTv2).

Grids of MViTv2 are batch, rows, columns, channels; its block takes and returns channels-last feature maps.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from vitrail.nn.attention import AttentionLayer
from vitrail.nn.blocks import DropPath
from vitrail.nn.convolution import widen_to_stride
from vitrail.nn.linear import Linear
from vitrail.nn.tap import TokenGrids
from vitrail.nn.tokens import FeatureMap, Grid, Tokens

KERNEL_SIZE = 3  # Li et al. 2022, published code
NORM_EPS = 1e-6  # Li et al. 2022, published code


class HeadPool(nn.Module):
    """Pool the tokens of each head with one shared depthwise 3x3 convolution, then normalise.

    Paper: Fan et al. 2021 (MViT), section 3.1; Li et al. 2022, section 3.
    """

    def __init__(self, num_heads: int, head_dim: int, *, stride: int) -> None:
        super().__init__()
        self.num_heads, self.stride = num_heads, stride
        self.weight = nn.Parameter(torch.empty(head_dim, 1, KERNEL_SIZE, KERNEL_SIZE))
        nn.init.kaiming_uniform_(self.weight, a=math.sqrt(5))  # torch's own convolutions, as published
        self.norm = nn.LayerNorm(head_dim, eps=NORM_EPS)

    def forward(
        self, x: Float[Tensor, "batch rows columns dim"]
    ) -> Float[Tensor, "batch new_rows new_columns heads head_dim"]:
        # One convolution of all heads needs no copy of the tokens; heads in the batch would.
        weight = self.weight.repeat(self.num_heads, 1, 1, 1)
        padding = KERNEL_SIZE // 2
        x = widen_to_stride(x.movedim(-1, 1), self.stride)
        x = F.conv2d(
            x, weight, stride=self.stride, padding=padding, groups=weight.shape[0]
        )  # b dim new_rows new_columns
        x = x.movedim(1, -1)
        x = x.reshape(*x.shape[:3], self.num_heads, -1)  # b rows columns heads head_dim
        return self.norm(x).to(x.dtype)

    def extra_repr(self) -> str:
        return f"num_heads={self.num_heads}, stride={self.stride}"


class MaxHeadPool(nn.Module):
    """Pool the tokens of each head by 3x3 maxima, without weights.

    Paper: Fan et al. 2021 (MViT), table 15; without a norm: published code.
    """

    def __init__(self, num_heads: int, head_dim: int, *, stride: int) -> None:
        super().__init__()
        self.num_heads, self.stride, self.norm = num_heads, stride, nn.Identity()

    def forward(
        self, x: Float[Tensor, "batch rows columns dim"]
    ) -> Float[Tensor, "batch new_rows new_columns heads head_dim"]:
        x = F.max_pool2d(x.movedim(-1, 1), KERNEL_SIZE, stride=self.stride, padding=KERNEL_SIZE // 2)
        return x.movedim(1, -1).unflatten(-1, (self.num_heads, -1))  # b rows columns heads head_dim


POOLS: dict[str, type[HeadPool] | type[MaxHeadPool]] = {"convolution": HeadPool, "max": MaxHeadPool}


class PoolingAttention(AttentionLayer):
    """Attend from pooled queries to pooled keys, and add the queries to the result.

    Args:
        positions: bias of the scores, from queries and both grids.
        query_stride: of queries and result, relative to the tokens.
        key_stride: of keys and values.
        pooling: ``convolution`` or ``max``.

    Paper: Fan et al. 2021 (MViT), section 3.1; residual pooling: Li et al. 2022 (MViTv2), equation 5.
    """

    def __init__(
        self,
        dim: int,
        out_dim: int,
        num_heads: int,
        *,
        positions: nn.Module,
        query_stride: int,
        key_stride: int,
        pooling: str = "convolution",
    ) -> None:
        super().__init__()
        assert out_dim % num_heads == 0, f"{num_heads} heads do not divide {out_dim} channels"
        head_dim, pool = out_dim // num_heads, POOLS[pooling]
        self.out_dim = out_dim
        self.qkv = Linear(dim, 3 * out_dim)
        self.query_pool = pool(num_heads, head_dim, stride=query_stride)
        self.key_pool = pool(num_heads, head_dim, stride=key_stride)
        self.value_pool = pool(num_heads, head_dim, stride=key_stride)
        self.positions = positions
        self.projection = Linear(out_dim, out_dim)

    def forward(
        self, x: Float[Tensor, "batch rows columns dim"]
    ) -> Float[Tensor, "batch new_rows new_columns out_dim"]:
        """Return new tokens, on the grid of the queries."""
        # Three products instead of one leave each part contiguous for its convolution.
        pools = (self.query_pool, self.key_pool, self.value_pool)
        query, key, value = (
            pool(self.qkv.part(x, index * self.out_dim, (index + 1) * self.out_dim))
            for index, pool in enumerate(pools)
        )
        query_grid, key_grid = (query.shape[1], query.shape[2]), (key.shape[1], key.shape[2])
        query, key, value = (part.flatten(1, 2).transpose(1, 2) for part in (query, key, value))  # b h n d
        bias = self.positions(query, query_grid=query_grid, key_grid=key_grid)
        grids = TokenGrids(queries=query_grid, keys=key_grid)
        out = self.average(query, key, value, bias=bias, grids=grids)
        out = out + query  # Li et al. 2022, equation 5
        return self.projection(out.transpose(1, 2).reshape(out.shape[0], *query_grid, -1))  # b rows columns d


class PrefixPoolingAttention(AttentionLayer):
    """Attend from pooled queries to pooled keys; prefix tokens are normalised with them, but not pooled.

    Args:
        query_stride: of queries and result, relative to the tokens' grid; at stride 1 they are not pooled.
        key_stride: of keys and values, which are always pooled.
        pooling: ``convolution`` or ``max``.

    Paper: Fan et al. 2021 (MViT), section 3.1; what pools: table 15; prefix: published code.
    """

    def __init__(
        self, dim: int, num_heads: int, *, query_stride: int, key_stride: int, pooling: str = "convolution"
    ) -> None:
        super().__init__()
        assert dim % num_heads == 0, f"{num_heads} heads do not divide {dim} channels"
        self.num_heads, head_dim, pool = num_heads, dim // num_heads, POOLS[pooling]
        self.qkv = Linear(dim, 3 * dim)
        self.query_pool = pool(num_heads, head_dim, stride=query_stride) if query_stride > 1 else None
        self.key_pool = pool(num_heads, head_dim, stride=key_stride)
        self.value_pool = pool(num_heads, head_dim, stride=key_stride)
        self.projection = Linear(dim, dim)

    def forward(self, x: Tokens, *, grid: Grid) -> tuple[Float[Tensor, "batch fewer dim"], Grid]:
        """Return new tokens and the grid of the queries; ``grid`` is that of the tokens after the prefix."""
        query, key, value = self.qkv(x).chunk(3, dim=-1)
        query, query_grid = self._pool(query, self.query_pool, grid)
        key, key_grid = self._pool(key, self.key_pool, grid)
        value, _ = self._pool(value, self.value_pool, grid)
        grids = TokenGrids(queries=query_grid, keys=key_grid)
        out = self.average(query, key, value, grids=grids)
        return self.projection(out.transpose(1, 2).flatten(2)), query_grid

    def _pool(self, x: Tokens, pool: HeadPool | MaxHeadPool | None, grid: Grid) -> tuple[Tensor, Grid]:
        """Return the tokens by head (batch heads tokens head_dim) and their grid."""
        if pool is None:
            return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2), grid
        num_prefix = x.shape[1] - grid[0] * grid[1]
        patches = pool(x[:, num_prefix:].unflatten(1, grid))  # b rows columns h d
        prefix = pool.norm(x[:, :num_prefix].unflatten(-1, (self.num_heads, -1))).to(x.dtype)  # b prefix h d
        tokens = torch.cat((prefix, patches.flatten(1, 2)), dim=1)  # b n h d
        return tokens.transpose(1, 2), (patches.shape[1], patches.shape[2])


def pool_skip(x: FeatureMap, stride: int) -> Float[Tensor, "batch dim new_rows new_columns"]:
    """Max-pool what skips attention to the grid of its queries.

    Paper: Fan et al. 2021 (MViT), section 3.2, figure 3; the kernel is that of the published code.
    """
    if stride == 1:
        return x
    return F.max_pool2d(x, stride + 1, stride=stride, padding=(stride + 1) // 2)


class PoolingBlock(nn.Module):
    """``x = skip(x) + attention(norm(x))``, then ``x = skip(x) + mlp(norm(x))``; either may widen the tokens.

    A skip is the identity where the branch keeps the width, and else projects the normalised tokens; for
    strided attention it is also max-pooled.

    Args:
        hidden_dim: width after attention.
        out_dim: width after the MLP.
        stride: of the attention's queries.

    Paper: Li et al. 2022 (MViTv2), section 4.1 and figure 2; Fan et al. 2021, section 3.2.
    """

    def __init__(
        self,
        dim: int,
        hidden_dim: int,
        out_dim: int,
        *,
        attention: nn.Module,
        mlp: nn.Module,
        norm: Callable[[int], nn.Module],
        stride: int = 1,
        drop_path: float = 0.0,
    ) -> None:
        super().__init__()
        self.stride = stride
        self.mixer_norm, self.mixer = norm(dim), attention
        self.mixer_skip = Linear(dim, hidden_dim) if dim != hidden_dim else None
        self.mlp_norm, self.mlp = norm(hidden_dim), mlp
        self.mlp_skip = Linear(hidden_dim, out_dim) if hidden_dim != out_dim else None
        self.drop_path = DropPath(drop_path)

    def forward(self, x: FeatureMap) -> Float[Tensor, "batch out_dim new_rows new_columns"]:
        x = x.movedim(1, -1)  # b rows columns d
        normed = self.mixer_norm(x)
        skip = x if self.mixer_skip is None else self.mixer_skip(normed)
        pooled = pool_skip(skip.movedim(-1, 1), self.stride).movedim(1, -1)
        x = pooled + self.drop_path(self.mixer(normed))
        normed = self.mlp_norm(x)
        skip = x if self.mlp_skip is None else self.mlp_skip(normed)
        x = skip + self.drop_path(self.mlp(normed))
        return x.movedim(-1, 1)  # b d rows columns


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
        rows = _vectors_of(self.by_row, query_grid[0], key_grid[0]).to(query.dtype)
        columns = _vectors_of(self.by_column, query_grid[1], key_grid[1]).to(query.dtype)
        patches = query.reshape(*query.shape[:2], *query_grid, -1)  # b h rows columns d
        by_row = torch.einsum("bhrcd,rkd->bhrck", patches, rows)
        by_column = torch.einsum("bhrcd,ckd->bhrck", patches, columns)
        # As one product with zeros and ones: an addition that repeats both takes 2 to 13 times as long.
        bias = torch.cat((by_row, by_column), dim=-1) @ _indicators(key_grid, bias_like=by_row)
        return bias.flatten(2, 3)  # b h queries keys

    def extra_repr(self) -> str:
        grid = ((len(self.by_row) + 1) // 2, (len(self.by_column) + 1) // 2)
        return f"grid={grid}, head_dim={self.by_row.shape[1]}"


def _indicators(key_grid: Grid, *, bias_like: Tensor) -> Tensor:
    """Return ones where a row, or after them a column, is that of a key: rows + columns, keys."""
    rows, columns = key_grid
    in_row = torch.eye(rows, device=bias_like.device).repeat_interleave(columns, dim=1)
    in_column = torch.eye(columns, device=bias_like.device).repeat(1, rows)
    return torch.cat((in_row, in_column)).to(bias_like)


def _vectors_of(table: Tensor, num_queries: int, num_keys: int) -> Tensor:
    resized = resize_axis_table(table, 2 * max(num_queries, num_keys) - 1)
    return resized[relative_steps(num_queries, num_keys, device=table.device)]  # queries keys d
