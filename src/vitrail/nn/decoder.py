"""Transformer decoder: self-attention with a cache, cross-attention, and the state between steps.

Training runs whole target sequences under a causal mask. Decoding runs the same layers on the newest tokens
only, with a ``KeyValueCache`` of earlier ones and the source's keys and values computed once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, NamedTuple, Self

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from vitrail.nn.attention import AttentionLayer, head_widths
from vitrail.nn.blocks import Dropout, NormFactory
from vitrail.nn.cache import KeyValueCache, LayerCache
from vitrail.nn.linear import Linear
from vitrail.nn.tokens import Bias, Mask, Tokens


class CrossMemory(NamedTuple):
    """Keys and values of a context in one layer."""

    keys: Float[Tensor, "batch heads keys dim"]
    values: Float[Tensor, "batch heads keys value_dim"]


class CrossAttention(AttentionLayer):
    """Multi-head attention to a context whose keys and values are computed once, by ``remember``.

    Args:
        head_dim: width of a head's queries and keys, by default ``dim / num_heads``; so ``value_dim``.

    Paper: Vaswani et al. 2017, section 3.2.3, "encoder-decoder attention".
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        head_dim: int | None = None,
        value_dim: int | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.num_heads, self.dropout = num_heads, dropout
        self.head_dim, self.value_dim = head_widths(dim, num_heads, head_dim, value_dim)
        self.query = Linear(dim, num_heads * self.head_dim)
        self.key_value = Linear(dim, num_heads * (self.head_dim + self.value_dim))
        self.projection = Linear(num_heads * self.value_dim, dim)

    def remember(self, context: Float[Tensor, "batch keys dim"]) -> CrossMemory:
        widths = (self.num_heads * self.head_dim, self.num_heads * self.value_dim)
        parts = self.key_value(context).split(widths, dim=-1)
        return CrossMemory(*(part.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for part in parts))

    def forward(
        self,
        x: Float[Tensor, "batch queries dim"],
        memory: CrossMemory,
        *,
        bias: Bias | None = None,
        may_attend: Mask | None = None,
    ) -> Float[Tensor, "batch queries dim"]:
        query = self.query(x).reshape(*x.shape[:2], self.num_heads, self.head_dim).transpose(1, 2)  # b h n d
        out = self.average(query, *memory, bias=bias, may_attend=may_attend, kind="cross")
        return self.projection(out.transpose(1, 2).flatten(2))


class DecoderBlock(nn.Module):
    """Self-attention, cross-attention and MLP, each a residual branch with a norm.

    ``x = norm(x + branch(x))`` with the norm "post" (Vaswani et al. 2017, section 3.1), ``x = x +
    branch(norm(x))`` with "pre" (Xiong et al. 2020, table 1, right).

    Args:
        self_attention: or a causal convolution (``nn.mixers.convolution``).
    """

    def __init__(
        self,
        dim: int,
        *,
        self_attention: nn.Module,
        cross_attention: CrossAttention,
        mlp: nn.Module,
        norm: Literal["pre", "post"],
        norm_layer: NormFactory = nn.LayerNorm,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.is_pre_norm = norm == "pre"
        # Parameters stand in the order in which they are used, which optimisers and checkpoints follow.
        if self.is_pre_norm:
            self.self_norm, self.self_attention = norm_layer(dim), self_attention
            self.cross_norm, self.cross_attention = norm_layer(dim), cross_attention
            self.mlp_norm, self.mlp = norm_layer(dim), mlp
        else:
            self.self_attention, self.self_norm = self_attention, norm_layer(dim)
            self.cross_attention, self.cross_norm = cross_attention, norm_layer(dim)
            self.mlp, self.mlp_norm = mlp, norm_layer(dim)
        self.dropout = Dropout(dropout)

    def forward(
        self,
        x: Tokens,
        context: Float[Tensor, "batch keys dim"] | CrossMemory,
        *,
        may_attend: Bool[Tensor, "#batch #heads tokens tokens"] | None = None,
        context_may_attend: Bool[Tensor, "#batch #heads #tokens keys"] | None = None,
        context_bias: Float[Tensor, "#batch #heads #tokens keys"] | None = None,
        cache: LayerCache | None = None,
    ) -> Tokens:
        """Return new tokens, of whole sequences or, with a cache, of the newest tokens.

        Args:
            x: with a cache, the newest token of each hypothesis (sentences hypotheses dim).
            context: input of cross-attention, or what its ``remember`` returned.
            may_attend: self-attention's mask, such as ``causal_mask``; not needed with a cache.
            context_may_attend: cross-attention's mask, such as ``padding_mask``.
            context_bias: the same as a bias, -inf at padding.
            cache: this layer's keys and values of the earlier tokens.
        """
        look_back = partial(self.self_attention, may_attend=may_attend, cache=cache)
        x = self._residual(x, self.self_norm, look_back)
        memory = context if isinstance(context, CrossMemory) else self.cross_attention.remember(context)
        read = partial(self.cross_attention, memory=memory, bias=context_bias, may_attend=context_may_attend)
        x = self._residual(x, self.cross_norm, read)
        return self._residual(x, self.mlp_norm, self.mlp)

    def _residual(self, x: Tensor, norm: nn.Module, branch: Callable[[Tensor], Tensor]) -> Tensor:
        if self.is_pre_norm:
            return x + self.dropout(branch(norm(x)))
        return norm(x + self.dropout(branch(x)))


@dataclass(frozen=True)
class TransformerState:
    """A Transformer's ``DecoderState``."""

    memories: tuple[CrossMemory, ...]
    """The source's keys and values in each block."""
    source_bias: Float[Tensor, "sentences 1 1 source_tokens"] | None
    """-inf at padding, 0 elsewhere; None without padding."""
    cache: KeyValueCache
    """Keys and values of the target so far."""

    @property
    def num_rows(self) -> int:
        return self.cache.num_rows

    def expand(self, count: int) -> Self:
        return replace(self, cache=self.cache.expand(count))

    def select(self, rows: Int[Tensor, " rows"]) -> Self:
        return replace(self, cache=self.cache.select(rows))

    def keep(self, sentences: Int[Tensor, " kept"]) -> Self:
        memories = [
            CrossMemory(keys.index_select(0, sentences), values.index_select(0, sentences))
            for keys, values in self.memories
        ]
        bias = None if self.source_bias is None else self.source_bias.index_select(0, sentences)
        return replace(self, memories=tuple(memories), source_bias=bias, cache=self.cache.keep(sentences))


def remember_all(
    blocks: Sequence[DecoderBlock], context: Float[Tensor, "batch keys dim"]
) -> tuple[CrossMemory, ...]:
    """Return a context's cross-attention keys and values in each block.

    They are contiguous by head, which cut a step of attention to six tenths of its time (docs/log.md).
    """
    memories = (block.cross_attention.remember(context) for block in blocks)
    return tuple(CrossMemory(keys.contiguous(), values.contiguous()) for keys, values in memories)


def step_blocks(
    blocks: Sequence[DecoderBlock], x: Float[Tensor, "rows 1 dim"], state: TransformerState
) -> tuple[Float[Tensor, "rows dim"], TransformerState]:
    """Run each row's newest token through the blocks; return its output and the new state."""
    cache = state.cache.lengthened(device=x.device)
    x = x.reshape(cache.num_sentences, cache.num_hypotheses, -1)  # sentences hypotheses dim
    for layer, (block, memory) in enumerate(zip(blocks, state.memories, strict=True)):
        x = block(x, memory, context_bias=state.source_bias, cache=LayerCache(cache, layer))
    return x.flatten(0, 1), replace(state, cache=cache)
