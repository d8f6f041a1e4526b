"""Residual blocks of a decoder: attention to what is written, attention to a context, and an MLP.

Each is called with whole sequences, or with the newest token of every hypothesis and a cache of those
before. Where the norm stands is the class, as in ``nn.blocks``.
"""

from __future__ import annotations

from jaxtyping import Bool, Float
from torch import Tensor, nn

from vitrail.nn.blocks import BranchEnd, NormFactory
from vitrail.nn.cache import KeyValueCache
from vitrail.nn.decoder_attention import CausalAttention, CrossAttention, CrossMemory

Mask = Bool[Tensor, "#batch #heads #queries #keys"]
Bias = Float[Tensor, "#batch #heads #queries #keys"]


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
        self.self_norm, self.self_attention, self.self_end = norm(dim), self_attention, _end(dim, dropout)
        self.cross_norm, self.cross_attention, self.cross_end = norm(dim), cross_attention, _end(dim, dropout)
        self.mlp_norm, self.mlp, self.mlp_end = norm(dim), mlp, _end(dim, dropout)

    def forward(
        self,
        x: Float[Tensor, "batch tokens dim"],
        context: Float[Tensor, "batch keys dim"],
        *,
        may_attend: Mask,
        context_may_attend: Mask | None = None,
    ) -> Float[Tensor, "batch tokens dim"]:
        """Return new tokens of whole sequences; the masks are those of the two attentions."""
        x = x + self.self_end(self.self_attention(self.self_norm(x), may_attend=may_attend))
        memory = self.cross_attention.remember(context)
        read = self.cross_attention(self.cross_norm(x), memory, may_attend=context_may_attend)
        return self._transform(x + self.cross_end(read))

    def step(
        self,
        x: Float[Tensor, "sentences hypotheses dim"],
        memory: CrossMemory,
        cache: KeyValueCache,
        *,
        layer: int,
        context_bias: Bias | None = None,
    ) -> Float[Tensor, "sentences hypotheses dim"]:
        """Return the new tokens of the newest ones alone.

        Args:
            x: the newest token of each hypothesis.
            memory: of the context, by the ``remember`` of the cross-attention.
            cache: with room for these tokens.
            layer: index of this block in the cache.
            context_bias: of the cross-attention's scores, -inf at padding.
        """
        x = x + self.self_end(self.self_attention.step(self.self_norm(x), cache, layer=layer))
        return self._transform(
            x + self.cross_end(self.cross_attention(self.cross_norm(x), memory, bias=context_bias))
        )

    def _transform(self, x: Tensor) -> Tensor:
        return x + self.mlp_end(self.mlp(self.mlp_norm(x)))


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
        self.self_attention, self.self_end, self.self_norm = self_attention, _end(dim, dropout), norm(dim)
        self.cross_attention, self.cross_end, self.cross_norm = cross_attention, _end(dim, dropout), norm(dim)
        self.mlp, self.mlp_end, self.mlp_norm = mlp, _end(dim, dropout), norm(dim)

    def forward(
        self,
        x: Float[Tensor, "batch tokens dim"],
        context: Float[Tensor, "batch keys dim"],
        *,
        may_attend: Mask,
        context_may_attend: Mask | None = None,
    ) -> Float[Tensor, "batch tokens dim"]:
        """Return new tokens of whole sequences; the masks are those of the two attentions."""
        x = self.self_norm(x + self.self_end(self.self_attention(x, may_attend=may_attend)))
        memory = self.cross_attention.remember(context)
        read = self.cross_attention(x, memory, may_attend=context_may_attend)
        return self._transform(self.cross_norm(x + self.cross_end(read)))

    def step(
        self,
        x: Float[Tensor, "sentences hypotheses dim"],
        memory: CrossMemory,
        cache: KeyValueCache,
        *,
        layer: int,
        context_bias: Bias | None = None,
    ) -> Float[Tensor, "sentences hypotheses dim"]:
        """Return the new tokens of the newest ones alone; the arguments are those of the pre-norm block."""
        x = self.self_norm(x + self.self_end(self.self_attention.step(x, cache, layer=layer)))
        read = self.cross_attention(x, memory, bias=context_bias)
        return self._transform(self.cross_norm(x + self.cross_end(read)))

    def _transform(self, x: Tensor) -> Tensor:
        return self.mlp_norm(x + self.mlp_end(self.mlp(x)))


def _end(dim: int, dropout: float) -> BranchEnd:
    return BranchEnd(dim, dropout=dropout, layer_scale=None, drop_path=0.0)
