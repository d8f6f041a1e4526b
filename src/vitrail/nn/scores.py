"""Attention scores before the softmax.

Dot-product scores return a transformed query and a scale, for a fused kernel; the additive score is computed
for every pair.
"""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

ScoreName = Literal["scaled_dot", "dot", "general", "additive"]

Query = Float[Tensor, "batch heads queries dim"]
Key = Float[Tensor, "batch heads keys dim"]
Scores = Float[Tensor, "batch heads queries keys"]


class DotScore(nn.Module):
    """``score = scale * q k``; the scale is one for the plain dot product, ``dim ** -0.5`` (None) for the
    scaled.

    Paper: Luong et al. 2015, equation 8, "dot"; Vaswani et al. 2017, equation 1, scaled.
    """

    def __init__(self, *, scale: float | None) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, query: Query) -> Query:
        return query

    def extra_repr(self) -> str:
        return f"scale={self.scale}"


class GeneralScore(nn.Module):
    """``score = q W k``, with one matrix for each head; begins as the scaled dot product.

    Paper: Luong et al. 2015, equation 8, "general".
    """

    scale: float | None = 1.0

    def __init__(self, num_heads: int, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter((torch.eye(dim) * dim**-0.5).repeat(num_heads, 1, 1))

    def forward(self, query: Query) -> Query:
        return query @ self.weight.to(query.dtype)


class AdditiveScore(nn.Module):
    """``score = v tanh(q + k)``, where the projections of query and key are the paper's ``W s`` and ``U h``.

    Allocates ``queries * keys * dim`` values per head, unlike dot products.

    Paper: Bahdanau et al. 2015, section A.1.2.
    """

    def __init__(self, num_heads: int, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_heads, dim))
        nn.init.normal_(self.weight, std=dim**-0.5)

    def forward(self, query: Query, key: Key) -> Scores:
        hidden = (query.unsqueeze(-2) + key.unsqueeze(-3)).tanh()  # b h q k d
        return (hidden @ self.weight.to(hidden.dtype)[:, None, :, None]).squeeze(-1)


Score = DotScore | GeneralScore | AdditiveScore


def build_score(name: ScoreName, *, num_heads: int, dim: int) -> Score:
    """Return a new score; ``dim`` is the width of a head."""
    if name == "additive":
        return AdditiveScore(num_heads, dim)
    if name == "general":
        return GeneralScore(num_heads, dim)
    return DotScore(scale=None if name == "scaled_dot" else 1.0)
