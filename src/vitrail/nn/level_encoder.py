"""What stands between a backbone's maps and a decoder of boxes: attention, and convolutions downwards."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from vitrail.nn.blocks import MLP
from vitrail.nn.layer_normed import Inside, LayerNormedConvolution, keep_inside
from vitrail.nn.placed_attention import PlacedAttention
from vitrail.nn.placed_blocks import PlacedEncoderBlock
from vitrail.nn.positions import sinusoidal_grid_positions


class LevelEncoder(nn.Module):
    """Bring maps to one width, let the coarsest attend to itself, and hand what it knows to the finer ones.

    Args:
        channels: of each map, the finest first; each map has half the rows and columns of the one before.
        dim: width of the results.
        num_heads: heads of the attention.
        mlp_dim: width of its blocks' hidden layers.
        num_blocks: blocks of attention on the coarsest map.

    Paper: Zhao et al. 2024 (RT-DETR), section 4.2. Departs from the paper: there is no way back up to the
    coarse maps, and one bottleneck joins two maps.
    """

    def __init__(
        self, channels: Sequence[int], dim: int, *, num_heads: int, mlp_dim: int, num_blocks: int
    ) -> None:
        super().__init__()
        self.dim = dim
        self.inputs = nn.ModuleList(
            LayerNormedConvolution(each, dim, 1, activation=None) for each in channels
        )
        self.blocks = nn.ModuleList(
            PlacedEncoderBlock(dim, attention=PlacedAttention(dim, num_heads), mlp=MLP(dim, mlp_dim))
            for _ in range(num_blocks)
        )
        self.joins = nn.ModuleList(LevelJoin(dim) for _ in channels[1:])

    def forward(
        self,
        maps: Sequence[Float[Tensor, "batch _ _ _"]],
        inside: Sequence[Bool[Tensor, "batch 1 _ _"] | None],
    ) -> list[Float[Tensor, "batch _ _ _"]]:
        """Return one new map for each, of the same rows and columns.

        Args:
            maps: zero where they are not the image's.
            inside: which cells of each are the image's; None where all are.
        """
        levels = [layer(each, mask) for layer, each, mask in zip(self.inputs, maps, inside, strict=True)]
        levels[-1] = keep_inside(self._attend(levels[-1], inside[-1]), inside[-1])
        for index in reversed(range(len(self.joins))):
            levels[index] = self.joins[index](levels[index], levels[index + 1], inside[index])
        return levels

    def _attend(self, x: Tensor, inside: Tensor | None) -> Tensor:
        grid = (x.shape[-2], x.shape[-1])
        may_attend = None if inside is None else inside.flatten(2)[:, None]  # b 1 1 cells
        tokens = x.flatten(2).transpose(1, 2)
        positions = sinusoidal_grid_positions(grid, self.dim, device=x.device)[None].to(x.dtype)
        for block in self.blocks:
            tokens = block(tokens, positions=positions, may_attend=may_attend, grid=grid)
        return tokens.transpose(1, 2).reshape(x.shape)


class LevelJoin(nn.Module):
    """Add to a map what a bottleneck of convolutions makes of it and of a map of half its resolution.

    Args:
        dim: channels of both maps.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.narrow = LayerNormedConvolution(2 * dim, dim // 2, 1)
        self.spread = LayerNormedConvolution(dim // 2, dim // 2, 3)
        self.widen = LayerNormedConvolution(dim // 2, dim, 1, activation=None)

    def forward(
        self,
        fine: Float[Tensor, "batch dim rows columns"],
        coarse: Float[Tensor, "batch dim coarse_rows coarse_columns"],
        inside: Inside | None = None,
    ) -> Float[Tensor, "batch dim rows columns"]:
        """Return the new map.

        Args:
            fine: the map, zero where it is not the image's.
            coarse: the other one.
            inside: which cells of the fine map are the image's; None where all are.
        """
        # Each coarse cell stands for 2x2 fine ones, of which an odd map has only some.
        above = F.interpolate(coarse, scale_factor=2, mode="nearest")
        above = above[..., : fine.shape[-2], : fine.shape[-1]]
        branch = self.narrow(torch.cat((fine, above), dim=1), inside)
        return fine + self.widen(self.spread(branch, inside), inside)
