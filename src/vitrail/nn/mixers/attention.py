"""Self-attention as a token mixer (Vaswani et al. 2017)."""

from __future__ import annotations

from vitrail.nn.attention import MultiHeadAttention
from vitrail.nn.mixers.contract import MixerShape


def _attention(shape: MixerShape) -> MultiHeadAttention:
    return MultiHeadAttention(shape.dim, shape.num_heads)


MIXERS = {"attention": _attention}
