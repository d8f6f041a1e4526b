"""Deformable attention (Zhu et al. 2021): each query samples a few points of several feature maps.

Points are read bilinearly with ``grid_sample``: no compiled operator is needed. The result equals an average
over all positions with mostly zero weights; ``sampled_weights`` builds these, so that they can be recorded
like those of any attention.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from vitrail.core.tensors import vector_of
from vitrail.nn.blocks import Dropout
from vitrail.nn.detr_attention import DetrAttention
from vitrail.nn.linear import Linear
from vitrail.nn.tap import Tap, TokenGrids
from vitrail.nn.tokens import Grid


class Frame(NamedTuple):
    """Extent of the images in their padded feature maps, in x and y, as fractions of each map's size."""

    extent: Float[Tensor, "batch 2 levels"]
    """What the image covers; above one where its last position is only partly covered."""
    first: Float[Tensor, "batch 2 levels"]
    """Centre of the first position."""
    last: Float[Tensor, "batch 2 levels"]
    """Centre of the last position."""


class FeatureLevels(NamedTuple):
    """Multi-scale feature maps of the same images, as tokens."""

    tokens: Float[Tensor, "batch patches dim"]
    """Each map row by row, one after the other; zero outside of the image."""
    grids: tuple[Grid, ...]
    """Rows and columns of each map, for the largest image."""
    strides: tuple[int, ...]
    """Stride of each map in pixels."""
    sizes: Float[Tensor, "batch 2"]
    """Height and width of each image in pixels."""
    is_image: Bool[Tensor, "batch patches"] | None
    """False outside of the image; None where all are inside."""


def join_levels(
    maps: Sequence[Float[Tensor, "batch _ _ _"]],
    sizes: Int[Tensor, "batch 2"],
    inside: Sequence[Bool[Tensor, "batch 1 _ _"] | None],
    *,
    strides: tuple[int, ...],
) -> FeatureLevels:
    """Join feature maps to one sequence of tokens.

    Args:
        maps: one position per ``stride`` pixels, rounded up; zero outside of the image.
        sizes: height and width of each image in pixels.
        inside: which positions of each map are inside the image; None where all are.
    """
    grids = tuple((each.shape[-2], each.shape[-1]) for each in maps)
    tokens = torch.cat([each.flatten(2).transpose(1, 2) for each in maps], dim=1)  # b patches d
    masks = [each.flatten(1) for each in inside if each is not None]
    is_image = torch.cat(masks, dim=1) if masks else None
    return FeatureLevels(tokens, grids, strides, sizes.to(torch.float32), is_image)


def patch_centres(levels: FeatureLevels) -> Float[Tensor, "batch patches 2"]:
    """Return the x and y of each position's centre, as fractions of its image's width and height."""
    device = levels.sizes.device
    pixels = []
    for (rows, columns), stride in zip(levels.grids, levels.strides, strict=True):
        y, x = ((torch.arange(length, device=device) + 0.5) * stride for length in (rows, columns))
        pixels.append(torch.stack((x.expand(rows, -1), y[:, None].expand(-1, columns)), dim=-1))
    joined = torch.cat([each.flatten(0, 1) for each in pixels])  # patches 2
    return joined / levels.sizes.flip(1)[:, None]


def patch_sizes(levels: FeatureLevels) -> Float[Tensor, "batch patches 2"]:
    """Return the width and height of each position, as fractions of its image's."""
    lengths = [
        torch.full((rows * columns, 1), float(stride), device=levels.sizes.device)
        for (rows, columns), stride in zip(levels.grids, levels.strides, strict=True)
    ]
    return torch.cat(lengths) / levels.sizes.flip(1)[:, None]


def image_frame(levels: FeatureLevels) -> Frame:
    """Return where the images lie in their padded feature maps."""
    strides = vector_of(levels.strides, levels.sizes)
    patches = levels.sizes.flip(1)[..., None] / strides  # b 2 levels
    rows, columns = (vector_of(lengths, levels.sizes) for lengths in zip(*levels.grids, strict=True))
    lengths = torch.stack((columns, rows))  # 2 levels
    return Frame(patches / lengths, (0.5 / lengths).expand_as(patches), (patches.ceil() - 0.5) / lengths)


class DeformableAttention(nn.Module):
    """Average a few sampling points in and around each query's box; points and weights are learned.

    For a query with the box (centre c, size s), head h samples map l at ``c + s * offset[h, l, k] / (2 *
    num_points)``, weighted by a softmax over all points of the head. Offsets and weights are linear in the
    query. Points outside of the image are moved to its edge.

    Paper: Zhu et al. 2021 (Deformable DETR), equation 3 and appendix A.3, with boxes as there in A.4. Departs
    from the paper: nothing is read outside of the image.
    """

    tap: Tap | None

    def __init__(self, dim: int, num_heads: int, *, num_levels: int, num_points: int = 4) -> None:
        super().__init__()
        assert dim % num_heads == 0, f"{num_heads} heads do not divide {dim} channels"
        self.num_heads, self.num_levels, self.num_points = num_heads, num_levels, num_points
        num_samples = num_heads * num_levels * num_points
        self.offsets = Linear(dim, 2 * num_samples)
        self.weights = Linear(dim, num_samples)
        self.values = Linear(dim, dim)
        self.projection = Linear(dim, dim)
        self.tap = None
        self._initialise()

    def forward(
        self,
        query: Float[Tensor, "batch queries dim"],
        levels: FeatureLevels,
        boxes: Float[Tensor, "batch queries 4"],
    ) -> Float[Tensor, "batch queries dim"]:
        """Return new queries; boxes are cxcywh as fractions of the image."""
        values = self.values(levels.tokens)
        points, weights = self._points(query, levels, boxes)
        by_level = list(_split_values(values.float(), levels.grids, self.num_heads))
        read = sum(
            _sample(by_level[level], points[:, :, level], weights[:, :, level])
            for level in range(self.num_levels)
        )
        if self.tap is not None:
            for grid, dense in zip(levels.grids, _dense(points, weights, levels), strict=True):
                self.tap.take_weights(dense, kind="cross", grids=TokenGrids(queries=None, keys=grid))
        assert isinstance(read, Tensor)
        return self.projection(read.transpose(1, 2).flatten(2).to(query.dtype))

    def _points(self, query: Tensor, levels: FeatureLevels, boxes: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sampling points, as fractions of each map, and their weights, both in float32."""
        frame = image_frame(levels)
        # Points of all heads stand side by side, so that the few numbers of a box are broadcast over long
        # rows.
        offsets = self.offsets(query).float().unflatten(-1, (2, self.num_levels, -1))  # b q 2 l h*k
        boxes = boxes.float()[..., None]
        centres = boxes[:, :, :2] * frame.extent[:, None]  # b q 2 l
        steps = boxes[:, :, 2:] * frame.extent[:, None] / (2 * self.num_points)
        points = torch.addcmul(centres[..., None], offsets, steps[..., None])
        points = points.clamp(frame.first[:, None, ..., None], frame.last[:, None, ..., None])
        points = points.unflatten(-1, (self.num_heads, -1)).permute(0, 4, 3, 1, 5, 2)  # b h l q k 2
        weights = self.weights(query).float().unflatten(-1, (self.num_heads, -1)).softmax(dim=-1)
        return points, weights.unflatten(-1, (self.num_levels, -1)).permute(0, 2, 3, 1, 4)  # b h l q k

    def _initialise(self) -> None:
        """Point each head in another direction, its points in equal steps up to the edge of the box."""
        angles = torch.arange(self.num_heads) * (2 * math.pi / self.num_heads)
        directions = torch.stack((angles.cos(), angles.sin()), dim=-1)
        directions = directions / directions.abs().amax(dim=-1, keepdim=True)  # to the edge of a square
        steps = directions.T[:, None, :, None] * torch.arange(1, self.num_points + 1)  # 2 1 h k
        with torch.no_grad():
            self.offsets.bias.copy_(steps.expand(-1, self.num_levels, -1, -1).flatten())
        for layer in (self.offsets, self.weights):
            nn.init.zeros_(layer.weight)
        for bias in (self.weights.bias, self.values.bias, self.projection.bias):
            nn.init.zeros_(bias)
        for layer in (self.values, self.projection):
            nn.init.xavier_uniform_(layer.weight)


def sampled_weights(
    points: Float[Tensor, "batch heads queries points 2"],
    weights: Float[Tensor, "batch heads queries points"],
    grid: Grid,
) -> Float[Tensor, "batch heads queries patches"]:
    """Return the dense weights that sampling a feature map at some points amounts to.

    Each point gives its weight to its four nearest positions, bilinearly; what falls outside of the map is
    lost.

    Args:
        points: x and y of the points, as fractions of the map's width and height.
    """
    rows, columns = grid
    point = points * vector_of((columns, rows), points) - 0.5  # the centre of the first patch is zero
    corner = point.floor()
    share = point - corner  # weight of the further position
    dense = weights.new_zeros(*weights.shape[:-1], rows * columns)
    for right in (0, 1):
        for below in (0, 1):
            x, y = corner[..., 0] + right, corner[..., 1] + below
            of_x = share[..., 0] if right else 1 - share[..., 0]
            of_y = share[..., 1] if below else 1 - share[..., 1]
            inside = (x >= 0) & (x < columns) & (y >= 0) & (y < rows)
            patches = (y.clamp(0, rows - 1) * columns + x.clamp(0, columns - 1)).long()
            dense = dense.scatter_add(-1, patches, weights * of_x * of_y * inside)
    return dense


def _dense(points: Tensor, weights: Tensor, levels: FeatureLevels) -> Iterator[Tensor]:
    """Yield the dense weights on each map."""
    first = 0
    for level, (rows, columns) in enumerate(levels.grids):
        dense = sampled_weights(points[:, :, level], weights[:, :, level], (rows, columns))
        if levels.is_image is not None:  # rounding may leave a trace of weight beside the edge
            dense = dense * levels.is_image[:, None, None, first : first + rows * columns]
        yield dense
        first += rows * columns


def _split_values(values: Tensor, grids: tuple[Grid, ...], num_heads: int) -> Iterator[Tensor]:
    """Yield each map of each head alone, as ``grid_sample`` reads it: batch*heads dim rows columns."""
    heads = values.unflatten(-1, (num_heads, -1)).permute(0, 2, 3, 1)  # b h d patches
    # Slices would each allocate zeros for all positions in the backward pass.
    for grid, of_level in zip(
        grids, heads.split([rows * columns for rows, columns in grids], dim=-1), strict=True
    ):
        yield of_level.reshape(-1, heads.shape[2], *grid)


def _sample(values: Tensor, points: Tensor, weights: Tensor) -> Tensor:
    """Return the weighted sum of a map's values at some points: batch heads queries dim."""
    batch, heads = weights.shape[:2]
    between = points.flatten(0, 1) * 2 - 1  # grid_sample counts from -1 to 1
    read = F.grid_sample(values, between, mode="bilinear", padding_mode="zeros", align_corners=False)
    summed = (read * weights.flatten(0, 1)[:, None]).sum(dim=-1)  # b*h d q
    return summed.unflatten(0, (batch, heads)).transpose(-1, -2)


class DeformableDecoderBlock(nn.Module):
    """``x = x + branch(norm(x))`` with self-attention, deformable attention and MLP as branches, in this
    order.

    Paper: Zhu et al. 2021 (Deformable DETR), section 4.1, "Transformer decoder". Departs from the paper:
    norms stand before the branches, which needs no warm-up to be stable (Xiong et al. 2020).
    """

    def __init__(
        self,
        dim: int,
        *,
        self_attention: DetrAttention,
        sampled_attention: DeformableAttention,
        mlp: nn.Module,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.self_norm, self.self_attention = nn.LayerNorm(dim), self_attention
        self.sampled_norm, self.sampled_attention = nn.LayerNorm(dim), sampled_attention
        self.mlp_norm, self.mlp = nn.LayerNorm(dim), mlp
        self.dropout = Dropout(dropout)

    def forward(
        self,
        x: Float[Tensor, "batch queries dim"],
        levels: FeatureLevels,
        boxes: Float[Tensor, "batch queries 4"],
        *,
        positions: Float[Tensor, "batch queries dim"],
        may_attend: Bool[Tensor, "#batch 1 #queries queries"] | None = None,
    ) -> Float[Tensor, "batch queries dim"]:
        """Return new queries; boxes are cxcywh as fractions of the image."""
        mixed = self.self_attention(self.self_norm(x), positions=positions, may_attend=may_attend)
        x = x + self.dropout(mixed)
        x = x + self.dropout(self.sampled_attention(self.sampled_norm(x) + positions, levels, boxes))
        return x + self.dropout(self.mlp(self.mlp_norm(x)))
