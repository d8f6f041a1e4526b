"""Pooling attention (MViT), and the block that it makes coarser and wider.

Grids of tokens are batch, rows, columns, channels; the block takes and returns channels-last feature maps.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.nn.attention import Tap, TokenGrids, attend
from vitrail.nn.blocks import DropPath
from vitrail.nn.linear import Linear
from vitrail.nn.patches import widen_to_stride

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


class PoolingAttention(nn.Module):
    """Attend from pooled queries to pooled keys, and add the queries to the result.

    Args:
        positions: bias of the scores, from queries and both grids.
        query_stride: of queries and result, relative to the tokens.
        key_stride: of keys and values.

    Paper: Fan et al. 2021 (MViT), section 3.1; residual pooling: Li et al. 2022 (MViTv2), equation 5.
    """

    attend = staticmethod(attend)

    tap: Tap | None

    def __init__(
        self,
        dim: int,
        out_dim: int,
        num_heads: int,
        *,
        positions: nn.Module,
        query_stride: int,
        key_stride: int,
    ) -> None:
        super().__init__()
        assert out_dim % num_heads == 0, f"{num_heads} heads do not divide {out_dim} channels"
        head_dim = out_dim // num_heads
        self.out_dim = out_dim
        self.qkv = Linear(dim, 3 * out_dim)
        self.query_pool = HeadPool(num_heads, head_dim, stride=query_stride)
        self.key_pool = HeadPool(num_heads, head_dim, stride=key_stride)
        self.value_pool = HeadPool(num_heads, head_dim, stride=key_stride)
        self.positions = positions
        self.projection = Linear(out_dim, out_dim)
        self.tap = None

    def forward(
        self, x: Float[Tensor, "batch rows columns dim"]
    ) -> Float[Tensor, "batch new_rows new_columns out_dim"]:
        """Return new tokens, on the grid of the queries."""
        # Three products instead of one leave each part contiguous for its convolution.
        pools = (self.query_pool, self.key_pool, self.value_pool)
        query, key, value = (
            pool(self.qkv.part(x, place * self.out_dim, (place + 1) * self.out_dim))
            for place, pool in enumerate(pools)
        )
        query_grid, key_grid = (query.shape[1], query.shape[2]), (key.shape[1], key.shape[2])
        query, key, value = (part.flatten(1, 2).transpose(1, 2) for part in (query, key, value))  # b h n d
        bias = self.positions(query, query_grid=query_grid, key_grid=key_grid)
        if self.tap is not None:
            grids = TokenGrids(queries=query_grid, keys=key_grid)
            self.tap(query, key, bias=bias, may_attend=None, scale=None, kind="self", grids=grids)
        out = self.attend(query, key, value, bias=bias)
        if self.tap is not None:
            self.tap.take_result(value, out)
        out = out + query  # Li et al. 2022, equation 5
        return self.projection(out.transpose(1, 2).reshape(out.shape[0], *query_grid, -1))  # b rows columns d


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

    def forward(
        self, x: Float[Tensor, "batch dim rows columns"]
    ) -> Float[Tensor, "batch out_dim new_rows new_columns"]:
        x = x.movedim(1, -1)  # b rows columns d
        normed = self.mixer_norm(x)
        skip = x if self.mixer_skip is None else self.mixer_skip(normed)
        x = self._pool(skip) + self.drop_path(self.mixer(normed))
        normed = self.mlp_norm(x)
        skip = x if self.mlp_skip is None else self.mlp_skip(normed)
        x = skip + self.drop_path(self.mlp(normed))
        return x.movedim(-1, 1)  # b d rows columns

    def _pool(self, skip: Tensor) -> Tensor:
        if self.stride == 1:
            return skip
        kernel = self.stride + 1  # Li et al. 2022, published code
        pooled = F.max_pool2d(skip.movedim(-1, 1), kernel, stride=self.stride, padding=kernel // 2)
        return pooled.movedim(1, -1)
