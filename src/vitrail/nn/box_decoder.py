"""Decoder blocks whose queries are boxes, and read the image at places in and around them."""

from __future__ import annotations

from jaxtyping import Bool, Float
from torch import Tensor, nn

from vitrail.nn.dropout import Dropout
from vitrail.nn.feature_levels import FeatureLevels
from vitrail.nn.placed_attention import PlacedAttention
from vitrail.nn.sampled_attention import SampledAttention


class BoxDecoderBlock(nn.Module):
    """``x = x + branch(norm(x))`` with self-attention, sampled attention and MLP as branches, in this order.

    Args:
        dim: width of queries and tokens.
        self_attention: of the queries to one another.
        sampled_attention: of the queries to the maps.
        mlp: transforms each query.
        dropout: probability that a value of a branch is dropped in training.

    Paper: Zhu et al. 2021 (Deformable DETR), section 4.1, "Transformer decoder". Departs from the paper:
    norms stand before the branches, which needs no warm-up to be stable (Xiong et al. 2020).
    """

    def __init__(
        self,
        dim: int,
        *,
        self_attention: PlacedAttention,
        sampled_attention: SampledAttention,
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
        """Return what the queries know now.

        Args:
            x: what they knew.
            levels: the maps that they read.
            boxes: cxcywh of each, as shares of the image.
            positions: of the queries.
            may_attend: True where a query may look at another.
        """
        mixed = self.self_attention(self.self_norm(x), positions=positions, may_attend=may_attend)
        x = x + self.dropout(mixed)
        x = x + self.dropout(self.sampled_attention(self.sampled_norm(x) + positions, levels, boxes))
        return x + self.dropout(self.mlp(self.mlp_norm(x)))
