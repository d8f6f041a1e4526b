"""Reading the sentences of a batch before a decoder's first step, with little padding among them.

A batch of sentences is as wide as its longest one: of 64 captions in the order of their file, half of the
tokens were padding. On a processor its products take the same time as those of words, so sentences of like
lengths are read together there. An accelerator is faster with one large batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vitrail.nn.decoder_attention import CrossAttention, CrossMemory
from vitrail.nn.masks import padding_mask

GROUP_SIZE = 16  # sentences; 8 to 32 took the same time, 64 the time of all in one

Encode = Callable[[Tensor, Tensor | None], Tensor]
"""What makes a context of tokens and of where they are no padding, or None where none is."""


def read_sentences(
    encode: Encode,
    attentions: Sequence[CrossAttention],
    source: Int[Tensor, "batch source_tokens"],
    lengths: Int[Tensor, " batch"],
) -> tuple[CrossMemory, ...]:
    """Return the encoded sentences as each cross-attention reads them, zeros at padding.

    Args:
        encode: the encoder.
        attentions: of the decoder's blocks, in turn.
        source: tokens of each sentence, then padding, which changes nothing.
        lengths: how many of them are not padding.
    """
    memories: tuple[CrossMemory, ...] = ()
    for rows, width in _group(lengths):
        is_padded = int(lengths[rows].min()) < width
        mask = padding_mask(lengths[rows], width) if is_padded else None
        parts = remember_all(attentions, encode(source[rows, :width], mask))
        if len(rows) == len(source) and width == source.shape[1]:
            return parts
        memories = memories or tuple(_room_like(part, source) for part in parts)
        for memory, part in zip(memories, parts, strict=True):
            memory.keys[rows, :, :width] = part.keys
            memory.values[rows, :, :width] = part.values
    return memories


def remember_all(
    attentions: Sequence[CrossAttention], context: Float[Tensor, "batch keys dim"]
) -> tuple[CrossMemory, ...]:
    """Return a context as each cross-attention reads it, laid out for steps that read all of it many times.

    Over the keys of one head in a row, a step of attention took six tenths of the time (docs/log.md).
    """
    memories = (attention.remember(context) for attention in attentions)
    return tuple(CrossMemory(keys.contiguous(), values.contiguous()) for keys, values in memories)


def _group(lengths: Tensor) -> Iterator[tuple[Tensor, int]]:
    """Yield the places of sentences that are read together, and the length of their longest."""
    if lengths.device.type != "cpu" or len(lengths) <= GROUP_SIZE:
        yield torch.arange(len(lengths), device=lengths.device), int(lengths.max())
        return
    for rows in lengths.argsort(stable=True).split(GROUP_SIZE):
        yield rows, int(lengths[rows[-1]])


def _room_like(part: CrossMemory, source: Tensor) -> CrossMemory:
    """Return zeros for the keys and values of all sentences, of which a part is given."""
    _, heads, _, head_dim = part.keys.shape
    shape = (len(source), heads, source.shape[1], head_dim)
    return CrossMemory(part.keys.new_zeros(shape), part.values.new_zeros(shape))
