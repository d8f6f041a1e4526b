"""Residual blocks of a decoder: attention to what is written, attention to a context, and an MLP.

Each is called with whole sequences; ``nn.decoder_step`` takes the newest tokens through one. Where the norm
stands is the class, as in ``nn.blocks``.
"""

from __future__ import annotations

from jaxtyping import Bool, Float
from torch import Tensor, nn

from vitrail.nn.blocks import MLP
from vitrail.nn.decoder_attention import CausalAttention, CrossAttention
from vitrail.nn.dropout import Dropout

Mask = Bool[Tensor, "#batch #heads tokens tokens"]
ContextMask = Bool[Tensor, "#batch #heads #tokens keys"]


class PreNormDecoderBlock(nn.Module):
    """``x = x + branch(norm(x))`` with self-attention, cross-attention and MLP as branches, in this order.

    Args:
        dim: width of the tokens.
        self_attention: reads what is written.
        cross_attention: reads the context.
        mlp: transforms each token.
        dropout: probability that a value of a branch is dropped in training.

    Paper: Xiong et al. 2020, table 1, right.
    """

    def __init__(
        self,
        dim: int,
        *,
        self_attention: CausalAttention,
        cross_attention: CrossAttention,
        mlp: MLP,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.self_norm, self.self_attention = nn.LayerNorm(dim), self_attention
        self.cross_norm, self.cross_attention = nn.LayerNorm(dim), cross_attention
        self.mlp_norm, self.mlp = nn.LayerNorm(dim), mlp
        self.dropout = Dropout(dropout)

    def forward(
        self,
        x: Float[Tensor, "batch tokens dim"],
        context: Float[Tensor, "batch keys dim"],
        *,
        may_attend: Mask,
        context_may_attend: ContextMask | None = None,
    ) -> Float[Tensor, "batch tokens dim"]:
        """Return new tokens of whole sequences; the masks are those of the two attentions."""
        x = x + self.dropout(self.self_attention(self.self_norm(x), may_attend=may_attend))
        memory = self.cross_attention.remember(context)
        read = self.cross_attention(self.cross_norm(x), memory, may_attend=context_may_attend)
        return self._transform(x + self.dropout(read))

    def _transform(self, x: Tensor) -> Tensor:
        return x + self.dropout(self.mlp(self.mlp_norm(x)))


class PostNormDecoderBlock(nn.Module):
    """``x = norm(x + branch(x))`` with self-attention, cross-attention and MLP as branches, in this order.

    Args:
        dim: width of the tokens.
        self_attention: reads what is written.
        cross_attention: reads the context.
        mlp: transforms each token.
        dropout: probability that a value of a branch is dropped in training.

    Paper: Vaswani et al. 2017, section 3.1.
    """

    def __init__(
        self,
        dim: int,
        *,
        self_attention: CausalAttention,
        cross_attention: CrossAttention,
        mlp: MLP,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.self_attention, self.self_norm = self_attention, nn.LayerNorm(dim)
        self.cross_attention, self.cross_norm = cross_attention, nn.LayerNorm(dim)
        self.mlp, self.mlp_norm = mlp, nn.LayerNorm(dim)
        self.dropout = Dropout(dropout)

    def forward(
        self,
        x: Float[Tensor, "batch tokens dim"],
        context: Float[Tensor, "batch keys dim"],
        *,
        may_attend: Mask,
        context_may_attend: ContextMask | None = None,
    ) -> Float[Tensor, "batch tokens dim"]:
        """Return new tokens of whole sequences; the masks are those of the two attentions."""
        x = self.self_norm(x + self.dropout(self.self_attention(x, may_attend=may_attend)))
        memory = self.cross_attention.remember(context)
        read = self.cross_attention(x, memory, may_attend=context_may_attend)
        return self._transform(self.cross_norm(x + self.dropout(read)))

    def _transform(self, x: Tensor) -> Tensor:
        return self.mlp_norm(x + self.dropout(self.mlp(x)))


DecoderBlock = PreNormDecoderBlock | PostNormDecoderBlock
