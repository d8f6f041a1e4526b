"""Self-attention as a token mixer (Vaswani et al. 2017)."""

from __future__ import annotations

from vitrail.nn.attention import Attention

MIXERS = {"attention": lambda shape: Attention(shape.dim, shape.num_heads)}
