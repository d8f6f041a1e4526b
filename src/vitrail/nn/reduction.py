"""Spatial-reduction attention: every position attends to a smaller feature map."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.nn.attention import AttentionLayer
from vitrail.nn.convolution import ChannelLayerNorm
from vitrail.nn.linear import Linear
from vitrail.nn.patches import pad_to_multiple
from vitrail.nn.tap import TokenGrids
from vitrail.nn.tokens import FeatureMap, Grid, InputMap, Mask, Tokens


class StridedReduction(nn.Module):
    """Project each square of ``ratio`` x ``ratio`` positions by a strided convolution, and normalise.

    Paper: Wang et al. 2021 (PVT), equation 3; with another width, its patch embedding, section 3.2.
    Departs from the paper: a square that is not full is zero-padded instead of left out.
    """

    def __init__(self, in_dim: int, dim: int, *, ratio: int) -> None:
        super().__init__()
        self.ratio = ratio
        self.convolution = nn.Conv2d(in_dim, dim, ratio, stride=ratio)
        self.norm = ChannelLayerNorm(dim, eps=1e-5)  # the published code's epsilon

    def forward(self, x: InputMap) -> FeatureMap:
        x = pad_to_multiple(x, (self.ratio, self.ratio))
        return self.norm(self.convolution(x.contiguous(memory_format=torch.channels_last)))


class PooledReduction(nn.Module):
    """Average-pool to a fixed size, then project, normalise and activate.

    Args:
        size: rows and columns of the result, whatever those of the input.

    Paper: Wang et al. 2022 (PVTv2), section 3.2, "linear SRA".
    """

    def __init__(self, dim: int, *, size: int) -> None:
        super().__init__()
        self.size = size
        self.projection = Linear(dim, dim)
        self.norm = nn.LayerNorm(dim)  # the published code's epsilon, torch's own

    def forward(
        self, x: Float[Tensor, "batch dim rows_in columns_in"]
    ) -> Float[Tensor, "batch dim size size"]:
        pooled = F.adaptive_avg_pool2d(x, self.size).movedim(1, -1)  # b size size d
        return F.gelu(self.norm(self.projection(pooled))).movedim(-1, 1)  # b d size size


class ReducedAttention(AttentionLayer):
    """Attend from every position to a smaller version of the feature map.

    Paper: Wang et al. 2021 (PVT), equations 1 to 4, "spatial-reduction attention".
    """

    def __init__(self, dim: int, num_heads: int, *, reduction: nn.Module) -> None:
        super().__init__()
        assert dim % num_heads == 0, f"{num_heads} heads do not divide {dim} channels"
        self.num_heads, self.head_dim = num_heads, dim // num_heads
        self.query = Linear(dim, dim)
        self.reduction = reduction
        self.key_value = Linear(dim, 2 * dim)
        self.projection = Linear(dim, dim)

    def forward(self, x: Tokens, *, may_attend: Mask | None = None, grid: Grid | None = None) -> Tokens:
        """Return new tokens; ``grid`` is required.

        Args:
            may_attend: always None: a mask does not carry over to the smaller feature map.
        """
        assert grid is not None, "keys are reduced on a grid"
        assert may_attend is None, "reduced keys cannot be masked"
        reduced = self.reduction(x.transpose(1, 2).reshape(x.shape[0], -1, *grid))  # b d rows columns
        grids = TokenGrids(queries=grid, keys=(reduced.shape[-2], reduced.shape[-1]))
        heads = (self.num_heads, self.head_dim)
        query = self.query(x).unflatten(-1, heads).transpose(1, 2)  # b h n d
        pairs = self.key_value(reduced.flatten(2).transpose(1, 2)).unflatten(-1, (2, *heads))  # b n 2 h d
        key, value = pairs.permute(2, 0, 3, 1, 4).unbind()  # b h n d
        out = self.average(query, key, value, grids=grids)
        return self.projection(out.transpose(1, 2).flatten(2))
