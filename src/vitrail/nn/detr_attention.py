"""DETR's attention: positions are added to queries and keys, not to values, in every layer.

Paper: Carion et al. 2020, appendix A.3 and A.4.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from vitrail.nn.attention import AttentionLayer
from vitrail.nn.blocks import Dropout
from vitrail.nn.linear import Linear
from vitrail.nn.sinusoidal import WAVELENGTH_BASE
from vitrail.nn.tap import TokenGrids, one_grid
from vitrail.nn.tokens import Grid, Mask

EXTENT = 2 * math.pi  # scale of positions along an axis; Carion et al. 2020, published code
EPSILON = 1e-6  # likewise: added to the number of positions


def axes_inside(
    sizes: Int[Tensor, "batch 2"], image_size: tuple[int, int], grid: Grid
) -> tuple[Bool[Tensor, "batch rows"], Bool[Tensor, "batch columns"]]:
    """Return which rows and columns of a feature map are inside the images, not padding.

    A position is inside if the first pixel of its share of the padded image is.

    Args:
        sizes: height and width of each image in pixels, without the padding.
        image_size: height and width of the padded images.

    Source: Carion et al. 2020, published code, where the mask of pixels is resized to the nearest ones.

    Example:
        >>> rows, columns = axes_inside(torch.tensor([[64, 40]]), (64, 96), (2, 3))
        >>> rows.tolist(), columns.tolist()
        ([[True, True]], [[True, True, False]])
    """
    first_pixels = [
        torch.arange(length, device=sizes.device) * pixels // length
        for pixels, length in zip(image_size, grid, strict=True)
    ]
    return first_pixels[0] < sizes[:, :1], first_pixels[1] < sizes[:, 1:]


def sine_positions_inside(
    rows: Bool[Tensor, "batch rows"], columns: Bool[Tensor, "batch columns"], dim: int
) -> Float[Tensor, "batch patches dim"]:
    """Return a sinusoidal encoding of each row, then of each column, as fractions of the image; float32.

    The last row and column of an image have the position two pi, whatever its size. Padding has positions,
    too, which must be masked.

    Args:
        rows: True inside the image; the first ones.
        dim: a multiple of four.

    Paper: Carion et al. 2020, appendix A.4; the scale is that of the published code.
    """
    by_row, by_column = (_encode_axis(axis, dim // 2) for axis in (rows, columns))  # batch patches dim/2
    batch, grid = rows.shape[0], (rows.shape[1], columns.shape[1])
    row_part = by_row[:, :, None].expand(batch, *grid, -1)
    column_part = by_column[:, None].expand(batch, *grid, -1)
    return torch.cat((row_part, column_part), dim=-1).flatten(1, 2)  # batch patches dim


def _encode_axis(is_inside: Tensor, dim: int) -> Tensor:
    count = is_inside.cumsum(dim=1, dtype=torch.float32)
    position = count / (count[:, -1:] + EPSILON) * EXTENT
    channels = torch.arange(0, dim, 2, device=position.device, dtype=torch.float32)
    angles = position[..., None] / WAVELENGTH_BASE ** (channels / dim)
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(2)  # batch patches dim


class DetrAttention(AttentionLayer):
    """Multi-head attention that adds positions to queries and keys.

    ``query = W_q (x + positions)``, ``key = W_k (context + context_positions)``, ``value = W_v context``.
    Query, key and value weights are one matrix.

    Paper: Carion et al. 2020, appendix A.3, figure 10.
    """

    def __init__(self, dim: int, num_heads: int, *, dropout: float = 0.0) -> None:
        super().__init__()
        assert dim % num_heads == 0, f"{num_heads} heads do not divide {dim} channels"
        self.num_heads, self.head_dim, self.dropout = num_heads, dim // num_heads, dropout
        self.qkv = Linear(dim, 3 * dim)
        self.projection = Linear(dim, dim)

    def forward(
        self,
        x: Float[Tensor, "batch queries dim"],
        *,
        positions: Float[Tensor, "#batch queries dim"],
        context: Float[Tensor, "batch keys dim"] | None = None,
        context_positions: Float[Tensor, "#batch keys dim"] | None = None,
        may_attend: Mask | None = None,
        grid: Grid | None = None,
    ) -> Float[Tensor, "batch queries dim"]:
        """Return new tokens.

        Args:
            context: keys and values; None means ``x`` itself, with its positions.
            grid: rows and columns of the keys where they are an image's, for recorded maps.
        """
        query, key, value = self._project(x, positions, context, context_positions)
        kind, grids = "self", one_grid(grid)
        if context is not None:
            kind, grids = "cross", None if grid is None else TokenGrids(queries=None, keys=grid)
        out = self.average(query, key, value, may_attend=may_attend, kind=kind, grids=grids)
        return self.projection(out.transpose(1, 2).flatten(2))

    def _project(
        self, x: Tensor, positions: Tensor, context: Tensor | None, context_positions: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        dim = x.shape[-1]
        if context is None:
            both = self.qkv.part(x + positions, 0, 2 * dim).unflatten(-1, (2, self.num_heads, self.head_dim))
            query, key = both.permute(2, 0, 3, 1, 4).unbind()  # b h n d
            return query, key, self._part_heads(self.qkv.part(x, 2 * dim, 3 * dim))
        assert context_positions is not None, "a context without positions"
        query = self.qkv.part(x + positions, 0, dim)
        key = self.qkv.part(context + context_positions, dim, 2 * dim)
        value = self.qkv.part(context, 2 * dim, 3 * dim)
        return self._part_heads(query), self._part_heads(key), self._part_heads(value)

    def _part_heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)  # b h n d


class DetrEncoderBlock(nn.Module):
    """``x = norm(x + attention(x))``, then ``x = norm(x + mlp(x))``.

    Paper: Carion et al. 2020, appendix A.3, figure 10, left.
    """

    def __init__(self, dim: int, *, attention: DetrAttention, mlp: nn.Module, dropout: float = 0.0) -> None:
        super().__init__()
        self.attention, self.attention_norm = attention, nn.LayerNorm(dim)
        self.mlp, self.mlp_norm = mlp, nn.LayerNorm(dim)
        self.dropout = Dropout(dropout)

    def forward(
        self,
        x: Float[Tensor, "batch patches dim"],
        *,
        positions: Float[Tensor, "#batch patches dim"],
        may_attend: Mask | None = None,
        grid: Grid | None = None,
    ) -> Float[Tensor, "batch patches dim"]:
        mixed = self.attention(x, positions=positions, may_attend=may_attend, grid=grid)
        x = self.attention_norm(x + self.dropout(mixed))
        return self.mlp_norm(x + self.dropout(self.mlp(x)))


class DetrDecoderBlock(nn.Module):
    """``x = norm(x + branch(x))`` with self-attention, cross-attention and MLP as branches, in this order.

    Paper: Carion et al. 2020, appendix A.3, figure 10, right.
    """

    def __init__(
        self,
        dim: int,
        *,
        self_attention: DetrAttention,
        cross_attention: DetrAttention,
        mlp: nn.Module,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.self_attention, self.self_norm = self_attention, nn.LayerNorm(dim)
        self.cross_attention, self.cross_norm = cross_attention, nn.LayerNorm(dim)
        self.mlp, self.mlp_norm = mlp, nn.LayerNorm(dim)
        self.dropout = Dropout(dropout)

    def forward(
        self,
        x: Float[Tensor, "batch queries dim"],
        context: Float[Tensor, "batch patches dim"],
        *,
        positions: Float[Tensor, "#batch queries dim"],
        context_positions: Float[Tensor, "#batch patches dim"],
        may_attend: Mask | None = None,
        grid: Grid | None = None,
    ) -> Float[Tensor, "batch queries dim"]:
        """Return new queries; ``context`` is the feature map they read, ``grid`` its rows and columns."""
        x = self.self_norm(x + self.dropout(self.self_attention(x, positions=positions)))
        read = self.cross_attention(
            x,
            positions=positions,
            context=context,
            context_positions=context_positions,
            may_attend=may_attend,
            grid=grid,
        )
        x = self.cross_norm(x + self.dropout(read))
        return self.mlp_norm(x + self.dropout(self.mlp(x)))
