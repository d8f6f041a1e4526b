"""Residual blocks of a decoder: attention to what is written, attention to a context, and an MLP.

Each is called with whole sequences, or with the newest token of every hypothesis and a cache of those
before. Where the norm stands is the class, as in ``nn.blocks``.
"""

from __future__ import annotations

from jaxtyping import Bool, Float
from torch import Tensor, nn

from vitrail.nn.blocks import NormFactory
from vitrail.nn.cache import KeyValueCache
from vitrail.nn.decoder_attention import CausalAttention, CrossAttention, CrossMemory
from vitrail.nn.dropout import Dropout

Mask = Bool[Tensor, "#batch #heads tokens tokens"]
ContextMask = Bool[Tensor, "#batch #heads #tokens keys"]
ContextBias = Float[Tensor, "#sentences #heads #hypotheses keys"]


class PreNormDecoderBlock(nn.Module):
    """``x = x + branch(norm(x))`` with self-attention, cross-attention and MLP as branches, in this order.

    Args:
        dim: width of the tokens.
        self_attention: reads what is written.
        cross_attention: reads the context.
        mlp: transforms each token.
        norm: makes a norm from a width.
        dropout: probability that a value of a branch is dropped in training.

    Paper: Xiong et al. 2020, table 1, right.
    """

    def __init__(
        self,
        dim: int,
        *,
        self_attention: CausalAttention,
        cross_attention: CrossAttention,
        mlp: nn.Module,
        norm: NormFactory = nn.LayerNorm,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.self_norm, self.self_attention = norm(dim), self_attention
        self.cross_norm, self.cross_attention = norm(dim), cross_attention
        self.mlp_norm, self.mlp = norm(dim), mlp
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

    def step(
        self,
        x: Float[Tensor, "sentences hypotheses dim"],
        memory: CrossMemory,
        cache: KeyValueCache,
        *,
        layer: int,
        context_bias: ContextBias | None = None,
    ) -> Float[Tensor, "sentences hypotheses dim"]:
        """Return the new tokens of the newest ones alone.

        Args:
            x: the newest token of each hypothesis.
            memory: of the context, by the ``remember`` of the cross-attention.
            cache: with room for these tokens.
            layer: index of this block in the cache.
            context_bias: of the cross-attention's scores, -inf at padding.
        """
        x = x + self.dropout(self.self_attention.step(self.self_norm(x), cache, layer=layer))
        return self._transform(
            x + self.dropout(self.cross_attention(self.cross_norm(x), memory, bias=context_bias))
        )

    def _transform(self, x: Tensor) -> Tensor:
        return x + self.dropout(self.mlp(self.mlp_norm(x)))


class PostNormDecoderBlock(nn.Module):
    """``x = norm(x + branch(x))`` with self-attention, cross-attention and MLP as branches, in this order.

    Args:
        dim: width of the tokens.
        self_attention: reads what is written.
        cross_attention: reads the context.
        mlp: transforms each token.
        norm: makes a norm from a width.
        dropout: probability that a value of a branch is dropped in training.

    Paper: Vaswani et al. 2017, section 3.1.
    """

    def __init__(
        self,
        dim: int,
        *,
        self_attention: CausalAttention,
        cross_attention: CrossAttention,
        mlp: nn.Module,
        norm: NormFactory = nn.LayerNorm,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.self_attention, self.self_norm = self_attention, norm(dim)
        self.cross_attention, self.cross_norm = cross_attention, norm(dim)
        self.mlp, self.mlp_norm = mlp, norm(dim)
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

    def step(
        self,
        x: Float[Tensor, "sentences hypotheses dim"],
        memory: CrossMemory,
        cache: KeyValueCache,
        *,
        layer: int,
        context_bias: ContextBias | None = None,
    ) -> Float[Tensor, "sentences hypotheses dim"]:
        """Return the new tokens of the newest ones alone; the arguments are those of the pre-norm block."""
        x = self.self_norm(x + self.dropout(self.self_attention.step(x, cache, layer=layer)))
        read = self.cross_attention(x, memory, bias=context_bias)
        return self._transform(self.cross_norm(x + self.dropout(read)))

    def _transform(self, x: Tensor) -> Tensor:
        return self.mlp_norm(x + self.dropout(self.mlp(x)))


DecoderBlock = PreNormDecoderBlock | PostNormDecoderBlock
