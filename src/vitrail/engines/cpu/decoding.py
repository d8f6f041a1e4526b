"""Faster decoding on a CPU: little overhead between the matrix products, little padding in the source.

A step for one sentence is some hundred operations of microseconds; module calls and attribute look-ups took
as long again (docs/log.md), so what a step needs is taken from the modules once for all steps. Evaluation
only: no dropout, and no tap is called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Self

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from vitrail.engines.cpu.attention import attend
from vitrail.engines.cpu.linear import linear, packed_linear
from vitrail.models.caption_transformer import CaptionTransformer
from vitrail.models.contract import DecoderState
from vitrail.models.transformer import Transformer
from vitrail.nn.attention import Attention
from vitrail.nn.blocks import MLP
from vitrail.nn.cache import KeyValueCache, LayerCache
from vitrail.nn.decoder import CrossAttention, CrossMemory, DecoderBlock, TransformerState

GROUP_SIZE = 16  # sentences per encoder batch; 8 to 32 took the same time, 64 as long as one large batch
# Two batched products take 0.7 to 0.9 of the fused kernel's time from this many heads of all sentences and
# this many numbers in the keys of a head: PyTorch gives smaller products to a plain loop (docs/log.md).
MIN_HEADS_OF_PRODUCTS, MIN_KEYS_OF_PRODUCTS = 128, 400

Newest = Float[Tensor, "sentences hypotheses dim"]
ContextBias = Float[Tensor, "#sentences #heads #hypotheses keys"]
LinearWeights = tuple[Tensor, Tensor | None]


@torch.no_grad()
def _step(
    model: Transformer | CaptionTransformer, tokens: Int[Tensor, " rows"], state: DecoderState
) -> tuple[Float[Tensor, "rows vocabulary"], StepState]:
    """Return the logits after the newest tokens, as ``SequenceModel``."""
    assert isinstance(state, StepState)
    cache = state.cache.lengthened(device=tokens.device)
    x = model.embed_newest(tokens, state)  # rows 1 dim
    x = x.reshape(cache.num_sentences, cache.num_hypotheses, -1)  # sentences hypotheses dim
    for layer, (step, memory) in enumerate(zip(state.steps, state.memories, strict=True)):
        x = step(x, memory, cache, layer=layer, context_bias=state.source_bias)
    x = model.decoder_norm(x).flatten(0, 1)
    return packed_linear(x, *model.score_weights()), replace(state, cache=cache)


class FastTransformer(Transformer):
    """A Transformer that decodes with ``BlockStep`` and encodes sentences of similar length together."""

    step = _step

    def read(
        self, source: Int[Tensor, "batch source_tokens"], source_lengths: Int[Tensor, " batch"]
    ) -> tuple[CrossMemory, ...]:
        """Return the cross-attention keys and values of the source, zeros at padding.

        In a batch as wide as its longest sentence, half of the tokens of 64 captions in file order were
        padding, which costs a CPU as much as words. Other devices are faster with one large batch.
        """
        memories: tuple[CrossMemory, ...] = ()
        for rows, width in _group(source_lengths):
            parts = super().read(source[rows, :width], source_lengths[rows])
            if len(rows) == len(source) and width == source.shape[1]:
                return parts
            memories = memories or tuple(_room_like(part, source) for part in parts)
            for memory, part in zip(memories, parts, strict=True):
                memory.keys[rows, :, :width] = part.keys
                memory.values[rows, :, :width] = part.values
        return memories

    @torch.no_grad()
    def start(
        self, source: Int[Tensor, "batch source_tokens"], source_lengths: Int[Tensor, " batch"]
    ) -> StepState:
        return StepState.prepare(self, super().start(source, source_lengths))


class FastCaptionTransformer(CaptionTransformer):
    """A captioning Transformer that decodes with ``BlockStep``."""

    step = _step

    @torch.no_grad()
    def start(self, images: Float[Tensor, "batch ..."]) -> StepState:
        return StepState.prepare(self, super().start(images))


DECODERS: dict[type[nn.Module], type[nn.Module]] = {
    CaptionTransformer: FastCaptionTransformer,
    Transformer: FastTransformer,
}
"""The faster class of each decoding model."""


@dataclass(frozen=True)
class StepState(TransformerState):
    """A Transformer's state with the parts of its modules that steps use."""

    steps: tuple[BlockStep, ...] = field(repr=False)

    @classmethod
    def prepare(cls, model: Transformer | CaptionTransformer, state: TransformerState) -> Self:
        given = {part.name: getattr(state, part.name) for part in fields(TransformerState)}
        return cls(**given, steps=tuple(map(BlockStep, model.decoder_blocks)))


def _group(lengths: Tensor) -> Iterator[tuple[Tensor, int]]:
    """Yield the rows of sentences to encode together, and their greatest length."""
    if lengths.device.type != "cpu" or len(lengths) <= GROUP_SIZE:
        yield torch.arange(len(lengths), device=lengths.device), int(lengths.max())
        return
    for rows in lengths.argsort(stable=True).split(GROUP_SIZE):
        yield rows, int(lengths[rows[-1]])


def _room_like(part: CrossMemory, source: Tensor) -> CrossMemory:
    """Return zeros for the keys and values of all sentences, shaped like those of some."""
    size = len(source), part.keys.shape[1], source.shape[1]  # b h n
    return CrossMemory(*(each.new_zeros(*size, each.shape[-1]) for each in part))


class CausalStep:
    """Attend from the newest token of each hypothesis to its past, with the weights of ``attention``, whose
    keys are as wide as its values."""

    __slots__ = ("head_dim", "num_heads", "place", "projection", "qkv")

    def __init__(self, attention: Attention) -> None:
        self.num_heads, self.head_dim = attention.num_heads, attention.head_dim
        self.qkv, self.projection = _of_linear(attention.qkv), _of_linear(attention.projection)
        positions = attention.positions
        self.place: Callable | None = None if positions is None else positions.place_newest  # type: ignore[assignment]

    def __call__(self, x: Newest, cache: KeyValueCache, *, layer: int) -> Newest:
        """Return new tokens; writes keys and values into ``cache``, which must have room for them."""
        sentences, hypotheses, _ = x.shape
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
        out = attend_newest(query, *cache.write(layer, key, value), bias)
        return linear(out.transpose(1, 2).reshape(sentences, hypotheses, -1), *self.projection)


class CrossStep:
    """Attend from the newest token of each hypothesis to the source, with the weights of ``attention``."""

    __slots__ = ("head_dim", "num_heads", "projection", "query")

    def __init__(self, attention: CrossAttention) -> None:
        self.num_heads, self.head_dim = attention.num_heads, attention.head_dim
        self.query, self.projection = _of_linear(attention.query), _of_linear(attention.projection)

    def __call__(self, x: Newest, memory: CrossMemory, bias: ContextBias | None) -> Newest:
        sentences, hypotheses, _ = x.shape
        query = linear(x, *self.query).view(sentences, hypotheses, self.num_heads, self.head_dim)
        out = attend_newest(query.transpose(1, 2), *memory, bias)
        return linear(out.transpose(1, 2).reshape(sentences, hypotheses, -1), *self.projection)


class BlockStep:
    """Take the newest tokens through a block, with the block's weights at each call."""

    __slots__ = ("cross", "cross_norm", "is_pre_norm", "mlp", "mlp_norm", "past", "past_norm")

    def __init__(self, block: DecoderBlock) -> None:
        self.is_pre_norm = block.is_pre_norm
        self.past, self.cross = _of_past(block.self_attention), CrossStep(block.cross_attention)
        mlp = block.mlp
        assert isinstance(mlp, MLP)
        self.mlp = _of_linear(mlp.expand), mlp.activation.forward, _of_linear(mlp.contract)
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
        """Return new tokens; ``context_bias`` is -inf at padding."""
        if self.is_pre_norm:
            x = x + self.past(self.past_norm(x), cache, layer=layer)
            x = x + self.cross(self.cross_norm(x), memory, context_bias)
            return x + _transform(self.mlp_norm(x), self.mlp)
        x = self.past_norm(x + self.past(x, cache, layer=layer))
        x = self.cross_norm(x + self.cross(x, memory, context_bias))
        return self.mlp_norm(x + _transform(x, self.mlp))


def attend_newest(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None) -> Tensor:
    """As ``nn.attention.attend`` without gradients, by plain products where few queries make them faster."""
    (sentences, heads, _, dim), num_keys = query.shape, key.shape[-2]
    if (
        sentences * heads < MIN_HEADS_OF_PRODUCTS
        or num_keys * dim < MIN_KEYS_OF_PRODUCTS
        or query.dtype != torch.float32
        or query.device.type != "cpu"
    ):
        return attend(query, key, value, bias=bias)
    scores = (query * dim**-0.5) @ key.transpose(-1, -2)
    return (scores if bias is None else scores.add_(bias)).softmax(-1) @ value


def _of_linear(layer: nn.Linear) -> LinearWeights:
    return layer.weight, layer.bias


def _of_past(attention: nn.Module) -> Callable[..., Newest]:
    if isinstance(attention, Attention) and attention.head_dim == attention.value_dim:
        return CausalStep(attention)
    return lambda x, cache, *, layer: attention(x, cache=LayerCache(cache, layer))


def _of_norm(norm: nn.Module) -> Callable[[Tensor], Tensor]:
    if not isinstance(norm, nn.LayerNorm):
        return norm
    shape, weight, bias, eps = [*norm.normalized_shape], norm.weight, norm.bias, norm.eps
    return partial(F.layer_norm, normalized_shape=shape, weight=weight, bias=bias, eps=eps)


def _transform(x: Tensor, weights: tuple[LinearWeights, Callable[[Tensor], Tensor], LinearWeights]) -> Tensor:
    expand, activate, contract = weights
    return linear(activate(linear(x, *expand)), *contract)
