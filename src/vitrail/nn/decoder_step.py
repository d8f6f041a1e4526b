"""One step of a decoder's blocks: the newest tokens alone, with little between the products.

A step for one sentence is some hundred operations of microseconds; calls of modules and looked-up attributes
took as long again (docs/log.md). What a step needs is therefore taken from the modules once for all steps.
Only what evaluation does is done: nothing is dropped, and no tap is called.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.nn.attention import attend
from vitrail.nn.blocks import MLP
from vitrail.nn.cache import KeyValueCache
from vitrail.nn.decoder_attention import CausalAttention, CrossAttention, CrossMemory
from vitrail.nn.decoder_blocks import DecoderBlock, PreNormDecoderBlock
from vitrail.nn.linear import linear

Newest = Float[Tensor, "sentences hypotheses dim"]
ContextBias = Float[Tensor, "#sentences #heads #hypotheses keys"]


class CausalStep:
    """Attend from the newest token of each hypothesis to its past.

    Args:
        attention: whose weights are used, as they are at each call.
    """

    __slots__ = ("head_dim", "num_heads", "place", "projection", "qkv")

    def __init__(self, attention: CausalAttention) -> None:
        self.num_heads, self.head_dim = attention.num_heads, attention.head_dim
        self.qkv, self.projection = _of_linear(attention.qkv), _of_linear(attention.projection)
        positions = attention.positions
        self.place: Callable | None = None if positions is None else positions.place_newest  # type: ignore[assignment]

    def __call__(self, x: Newest, cache: KeyValueCache, *, layer: int) -> Newest:
        """Return the new tokens of the newest ones.

        Args:
            x: the newest token of each hypothesis.
            cache: with room for these tokens; their keys and values are written into it.
            layer: index of this layer in the cache.
        """
        sentences, hypotheses, dim = x.shape
        qkv = linear(x, *self.qkv).view(sentences, hypotheses, 3, self.num_heads, self.head_dim)
        qkv, bias = qkv.permute(2, 0, 3, 1, 4), cache.bias  # 3 b h n d
        if self.place is None:
            query, key, value = qkv.unbind()
        else:
            (query, key), added = self.place(qkv[:2], num_before=cache.num_steps - 1)
            value = qkv[2]
            if added is not None:
                added = cache.spread(added)
                bias = added if bias is None else bias + added
        out = attend(query, *cache.write(layer, key, value), bias=bias)
        return linear(out.transpose(1, 2).reshape(sentences, hypotheses, dim), *self.projection)


class CrossStep:
    """Attend from the newest token of each hypothesis to the sentence that is read.

    Args:
        attention: whose weights are used, as they are at each call.
    """

    __slots__ = ("head_dim", "num_heads", "projection", "query")

    def __init__(self, attention: CrossAttention) -> None:
        self.num_heads, self.head_dim = attention.num_heads, attention.head_dim
        self.query, self.projection = _of_linear(attention.query), _of_linear(attention.projection)

    def __call__(self, x: Newest, memory: CrossMemory, bias: ContextBias | None) -> Newest:
        """Return the new tokens of the newest ones; ``bias`` is added to the scaled scores."""
        sentences, hypotheses, dim = x.shape
        query = linear(x, *self.query).view(sentences, hypotheses, self.num_heads, self.head_dim)
        out = attend(query.transpose(1, 2), *memory, bias=bias)
        return linear(out.transpose(1, 2).reshape(sentences, hypotheses, dim), *self.projection)


class BlockStep:
    """Take the newest tokens through a block.

    Args:
        block: whose weights are used, as they are at each call.
    """

    __slots__ = ("cross", "cross_norm", "is_pre_norm", "mlp", "mlp_norm", "past", "past_norm")

    def __init__(self, block: DecoderBlock) -> None:
        self.is_pre_norm = isinstance(block, PreNormDecoderBlock)
        self.past, self.cross = CausalStep(block.self_attention), CrossStep(block.cross_attention)
        self.mlp = _of_mlp(block.mlp)
        self.past_norm = _of_norm(block.self_norm)
        self.cross_norm = _of_norm(block.cross_norm)
        self.mlp_norm = _of_norm(block.mlp_norm)

    def __call__(
        self,
        x: Newest,
        memory: CrossMemory,
        cache: KeyValueCache,
        *,
        layer: int,
        context_bias: ContextBias | None = None,
    ) -> Newest:
        """Return the new tokens of the newest ones.

        Args:
            x: the newest token of each hypothesis.
            memory: of the context, by the ``remember`` of the cross-attention.
            cache: with room for these tokens.
            layer: index of this block in the cache.
            context_bias: of the cross-attention's scores, -inf at padding.
        """
        if self.is_pre_norm:
            x = x + self.past(_norm(x, self.past_norm), cache, layer=layer)
            x = x + self.cross(_norm(x, self.cross_norm), memory, context_bias)
            return x + _transform(_norm(x, self.mlp_norm), self.mlp)
        x = _norm(x + self.past(x, cache, layer=layer), self.past_norm)
        x = _norm(x + self.cross(x, memory, context_bias), self.cross_norm)
        return _norm(x + _transform(x, self.mlp), self.mlp_norm)


class _LinearWeights(NamedTuple):
    weight: Tensor
    bias: Tensor | None


class _NormWeights(NamedTuple):
    shape: tuple[int, ...]
    weight: Tensor
    bias: Tensor
    eps: float


class _MLPWeights(NamedTuple):
    expand: _LinearWeights
    activation: Callable[[Tensor], Tensor]
    contract: _LinearWeights


def _of_linear(layer: nn.Linear) -> _LinearWeights:
    return _LinearWeights(layer.weight, layer.bias)


def _of_norm(norm: nn.LayerNorm) -> _NormWeights:
    return _NormWeights(tuple(norm.normalized_shape), norm.weight, norm.bias, norm.eps)


def _of_mlp(mlp: MLP) -> _MLPWeights:
    return _MLPWeights(_of_linear(mlp.expand), mlp.activation.forward, _of_linear(mlp.contract))


def _norm(x: Tensor, weights: _NormWeights) -> Tensor:
    return F.layer_norm(x, *weights)


def _transform(x: Tensor, weights: _MLPWeights) -> Tensor:
    return linear(weights.activation(linear(x, *weights.expand)), *weights.contract)
