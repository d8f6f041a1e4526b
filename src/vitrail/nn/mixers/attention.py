"""Self-attention as a token mixer (Vaswani et al. 2017)."""

from __future__ import annotations

from vitrail.nn.attention import Attention
from vitrail.nn.mixers.contract import MixerShape


def _attention(shape: MixerShape) -> Attention:
    return Attention(shape.dim, shape.num_heads)


MIXERS = {"attention": _attention}
