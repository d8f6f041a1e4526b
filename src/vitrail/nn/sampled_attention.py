"""Attention that reads a few places of several feature maps for each query, and not all of their cells.

Each place is read between its four nearest cells, bilinearly, with ``grid_sample``: no compiled operator is
needed. What a query reads is the same as an average over all cells with weights of which all but a few are
zero; ``sampled_weights`` builds them, so that they can be seen like those of any attention.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.nn.attention import Places, Tap
from vitrail.nn.feature_levels import FeatureLevels, Grid, image_frame
from vitrail.nn.linear import Linear


class SampledAttention(nn.Module):
    """Average a few places in and around each query's box, of several maps; places and weights are learned.

    Of a query with the box (centre c, size s), head h reads map l at the places
    ``c + s * offset[h, l, k] / (2 * num_points)``, weighted by a softmax over all places of the head. Both
    come linearly from the query. Places outside of the image are moved to its edge.

    Args:
        dim: width of queries, tokens and result.
        num_heads: number of heads; divides ``dim``.
        num_levels: number of maps.
        num_points: places of each head in each map.

    Paper: Zhu et al. 2021 (Deformable DETR), equation 3 and appendix A.3, with boxes as there in A.4. Departs
    from the paper: nothing is read outside of the image.
    """

    tap: Tap | None
    """Called with the dense weights on each map, at every forward pass; see ``interpret.record``."""

    def __init__(self, dim: int, num_heads: int, *, num_levels: int, num_points: int = 4) -> None:
        super().__init__()
        assert dim % num_heads == 0, f"{num_heads} heads do not divide {dim} channels"
        self.num_heads, self.num_levels, self.num_points = num_heads, num_levels, num_points
        num_places = num_heads * num_levels * num_points
        self.offsets = Linear(dim, 2 * num_places)
        self.weights = Linear(dim, num_places)
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
        """Return what each query reads.

        Args:
            query: what asks.
            levels: the maps.
            boxes: cxcywh of each query, as shares of the image.
        """
        values = self.values(levels.tokens)
        places, weights = self._places(query, levels, boxes)
        by_level = list(_split_values(values.float(), levels.grids, self.num_heads))
        read = sum(
            _sample(by_level[level], places[:, :, level], weights[:, :, level])
            for level in range(self.num_levels)
        )
        if self.tap is not None:
            for grid, dense in zip(levels.grids, _dense(places, weights, levels), strict=True):
                self.tap.take_weights(dense, kind="cross", places=Places(queries=None, keys=grid))
        assert isinstance(read, Tensor)
        return self.projection(read.transpose(1, 2).flatten(2).to(query.dtype))

    def _places(self, query: Tensor, levels: FeatureLevels, boxes: Tensor) -> tuple[Tensor, Tensor]:
        """Return the places, as shares of each map, and their weights, both in float32."""
        frame = image_frame(levels)
        # Places of all heads stand side by side, so that the few numbers of a box are spread over long rows.
        offsets = self.offsets(query).float().unflatten(-1, (2, self.num_levels, -1))  # b q 2 l h*k
        boxes = boxes.float()[..., None]
        centres = boxes[:, :, :2] * frame.extent[:, None]  # b q 2 l
        steps = boxes[:, :, 2:] * frame.extent[:, None] / (2 * self.num_points)
        places = torch.addcmul(centres[..., None], offsets, steps[..., None])
        places = places.clamp(frame.first[:, None, ..., None], frame.last[:, None, ..., None])
        places = places.unflatten(-1, (self.num_heads, -1)).permute(0, 4, 3, 1, 5, 2)  # b h l q k 2
        weights = self.weights(query).float().unflatten(-1, (self.num_heads, -1)).softmax(dim=-1)
        return places, weights.unflatten(-1, (self.num_levels, -1)).permute(0, 2, 3, 1, 4)  # b h l q k

    def _initialise(self) -> None:
        """Let each head look in another direction, its places in equal steps up to the edge of the box."""
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
    places: Float[Tensor, "batch heads queries points 2"],
    weights: Float[Tensor, "batch heads queries points"],
    grid: Grid,
) -> Float[Tensor, "batch heads queries cells"]:
    """Return the weight of every cell of a map in the average that reads it at some places.

    Each place gives its weight to its four nearest cells, the nearer the more; what falls outside of the map
    is lost.

    Args:
        places: x and y as shares of the map's width and height.
        weights: of the places.
        grid: rows and columns of the map.
    """
    rows, columns = grid
    place = places * places.new_tensor((columns, rows)) - 0.5  # the centre of the first cell is zero
    corner = place.floor()
    share = place - corner  # of the further cell
    dense = weights.new_zeros(*weights.shape[:-1], rows * columns)
    for right in (0, 1):
        for below in (0, 1):
            x, y = corner[..., 0] + right, corner[..., 1] + below
            of_x = share[..., 0] if right else 1 - share[..., 0]
            of_y = share[..., 1] if below else 1 - share[..., 1]
            inside = (x >= 0) & (x < columns) & (y >= 0) & (y < rows)
            cells = (y.clamp(0, rows - 1) * columns + x.clamp(0, columns - 1)).long()
            dense = dense.scatter_add(-1, cells, weights * of_x * of_y * inside)
    return dense


def _dense(places: Tensor, weights: Tensor, levels: FeatureLevels) -> Iterator[Tensor]:
    """Yield the weight of every cell of each map."""
    first = 0
    for level, (rows, columns) in enumerate(levels.grids):
        dense = sampled_weights(places[:, :, level], weights[:, :, level], (rows, columns))
        if levels.is_image is not None:  # rounding may leave a trace of weight beside the edge
            dense = dense * levels.is_image[:, None, None, first : first + rows * columns]
        yield dense
        first += rows * columns


def _split_values(values: Tensor, grids: tuple[Grid, ...], num_heads: int) -> Iterator[Tensor]:
    """Yield each map of each head alone, as ``grid_sample`` reads it: batch*heads dim rows columns."""
    heads = values.unflatten(-1, (num_heads, -1)).permute(0, 2, 3, 1)  # b h d cells
    # Slices would each fill all cells with zeros in the backward pass.
    for grid, of_level in zip(
        grids, heads.split([rows * columns for rows, columns in grids], dim=-1), strict=True
    ):
        yield of_level.reshape(-1, heads.shape[2], *grid)


def _sample(values: Tensor, places: Tensor, weights: Tensor) -> Tensor:
    """Return the weighted sum of a map's values at some places: batch heads queries dim."""
    batch, heads = weights.shape[:2]
    between = places.flatten(0, 1) * 2 - 1  # grid_sample counts from -1 to 1
    read = F.grid_sample(values, between, mode="bilinear", padding_mode="zeros", align_corners=False)
    summed = (read * weights.flatten(0, 1)[:, None]).sum(dim=-1)  # b*h d q
    return summed.unflatten(0, (batch, heads)).transpose(-1, -2)
