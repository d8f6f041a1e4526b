"""Attention: the fused function, its exact weights, other scores, and the multi-head layer with its tap.

``attend`` never builds the weights where a fused kernel is faster; ``attention_weights`` builds them on
request. Both compute the same, so any model gives its attention maps at any time.
"""

from __future__ import annotations

import math

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.nn.cache import LayerCache
from vitrail.nn.linear import Linear
from vitrail.nn.masks import masked_softmax
from vitrail.nn.scores import AdditiveScore, Score, ScoreName, build_score
from vitrail.nn.tap import Scored, Tap, TokenGrids, one_grid
from vitrail.nn.tokens import Bias, Grid, Mask, Tokens


def attend(
    query: Float[Tensor, "batch heads queries dim"],
    key: Float[Tensor, "batch heads keys dim"],
    value: Float[Tensor, "batch heads keys value_dim"],
    *,
    bias: Bias | None = None,
    may_attend: Mask | None = None,
    scale: float | None = None,
    dropout: float = 0.0,
) -> Float[Tensor, "batch heads queries value_dim"]:
    """Average the values with the weights ``softmax(scale * query key^T + bias)``.

    The softmax is in float32, the result in the type of ``query``. A query that may attend to nothing
    gets zeros.

    Args:
        scale: by default ``dim ** -0.5``.
        dropout: probability that a weight is dropped; pass 0 outside training.

    Paper: Vaswani et al. 2017, equation 1.

    Example:
        >>> import torch
        >>> x = torch.ones(2, 3, 5, 7)
        >>> attend(x, x, x).shape
        torch.Size([2, 3, 5, 7])
    """
    mask = may_attend
    if bias is not None:
        mask = bias.to(query.dtype)
        if may_attend is not None:
            mask = mask.masked_fill(~may_attend, -math.inf)
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout, scale=scale)


def attention_weights(
    query: Float[Tensor, "batch heads queries dim"],
    key: Float[Tensor, "batch heads keys dim"],
    *,
    bias: Bias | None = None,
    may_attend: Mask | None = None,
    scale: float | None = None,
) -> Float[Tensor, "batch heads queries keys"]:
    """Return ``softmax(scale * query key^T + bias)``, the weights that ``attend`` averages with.

    The softmax is in float32, the result in the type of ``query``. Rows sum to one, or to zero for a query
    that may attend to nothing. Arguments are those of ``attend``.

    Paper: Vaswani et al. 2017, equation 1.
    """
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = (query * scale) @ key.transpose(-2, -1)
    if bias is not None:
        scores = scores + bias.to(scores.dtype)
    return masked_softmax(scores, may_attend).to(query.dtype)


class AttentionLayer(nn.Module):
    """What every layer of attention has: the function that averages, dropout of its weights, and a tap."""

    attend = staticmethod(attend)
    drop = staticmethod(F.dropout)

    dropout: float = 0.0
    """Probability that an attention weight is dropped."""
    tap: Tap | None
    """Called at every forward pass; see ``interpret.record``."""

    def __init__(self) -> None:
        super().__init__()
        self.tap = None

    def average(
        self,
        query: Float[Tensor, "batch heads queries dim"],
        key: Float[Tensor, "batch heads keys dim"],
        value: Float[Tensor, "batch heads keys value_dim"],
        *,
        score: Score | None = None,
        bias: Bias | None = None,
        may_attend: Mask | None = None,
        kind: str = "self",
        grids: TokenGrids | None = None,
        is_recorded: bool = True,
    ) -> Float[Tensor, "batch heads queries value_dim"]:
        """Average the values with the weights ``softmax(score(query, key) + bias)``; show both to the tap.

        Dot products use the fused ``attend``; other scores form their weights.

        Args:
            score: by default the scaled dot product.
            kind, grids: for the tap.
            is_recorded: whether the tap is called.
        """
        tap = self.tap if is_recorded else None
        dropout = self.dropout if self.training else 0.0
        if isinstance(score, AdditiveScore):
            scores = score(query, key)
            biased = scores if bias is None else scores + bias.to(scores.dtype)
            weights = masked_softmax(biased, may_attend).to(value.dtype)
            if tap is not None:
                scored = Scored(query, key, scores, bias, may_attend)
                tap.take_weights(weights, kind=kind, grids=grids, scored=scored)
            result = self.drop(weights, dropout) @ value
        else:
            scale = None if score is None else score.scale
            query = query if score is None else score(query)
            if tap is not None:
                tap(query, key, bias=bias, may_attend=may_attend, scale=scale, kind=kind, grids=grids)
            result = self.attend(
                query, key, value, bias=bias, may_attend=may_attend, scale=scale, dropout=dropout
            )
        if tap is not None:
            tap.take_result(value, result)
        return result


class Attention(AttentionLayer):
    """Multi-head self-attention.

    Query, key and value weights are one matrix, so that all three are one product.

    Args:
        head_dim: width of a head's queries and keys, the paper's d_k; by default ``dim / num_heads``.
        value_dim: width of a head's values, the paper's d_v; by default ``dim / num_heads``.
        score: a name of ``nn.scores``.
        positions: a ``PositionScheme`` (``nn.relative``); None if positions are added to the tokens.

    Paper: Vaswani et al. 2017, section 3.2.2.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        qkv_bias: bool = True,
        head_dim: int | None = None,
        value_dim: int | None = None,
        dropout: float = 0.0,
        score: ScoreName = "scaled_dot",
        positions: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.num_heads, self.dropout = num_heads, dropout
        self.head_dim, self.value_dim = head_widths(dim, num_heads, head_dim, value_dim)
        self.qkv = Linear(dim, num_heads * (2 * self.head_dim + self.value_dim), bias=qkv_bias)
        self.score = build_score(score, num_heads=num_heads, dim=self.head_dim)
        self.positions = positions
        self.projection = Linear(num_heads * self.value_dim, dim)

    def forward(
        self,
        x: Tokens,
        *,
        may_attend: Mask | None = None,
        grid: Grid | None = None,
        cache: LayerCache | None = None,
    ) -> Tokens:
        """Return new tokens.

        Args:
            x: with a cache, the newest token of each hypothesis.
            grid: rows and columns of an image's tokens, after any prefix tokens; for position schemes of a
                grid and recorded maps.
            cache: in decoding, keys and values of the earlier tokens; the newest are added to it.
        """
        query, key, value = self.split_heads(x)
        bias = None
        if cache is not None:
            query, key, value, bias = cache.extend(query, key, value, self.positions)
        elif self.positions is not None:
            query, key, bias = self.positions.place(query, key, grid=grid)  # type: ignore[operator]
        out = self.average(
            query, key, value, score=self.score, bias=bias, may_attend=may_attend, grids=one_grid(grid)
        )
        return self.projection(out.transpose(1, 2).flatten(2))

    def split_heads(self, x: Tokens) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values (batch heads tokens dim), before positions."""
        wide = self.num_heads * self.head_dim
        parts = self.qkv(x).split((wide, wide, self.num_heads * self.value_dim), dim=-1)
        query, key, value = (part.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for part in parts)
        return query, key, value  # b h n d


def head_widths(dim: int, num_heads: int, head_dim: int | None, value_dim: int | None) -> tuple[int, int]:
    """Return the widths of a head's keys and values: those given, or an equal share of the channels."""
    assert None not in (head_dim, value_dim) or dim % num_heads == 0, (
        f"{num_heads} heads do not divide {dim} channels"
    )
    share = dim // num_heads
    return share if head_dim is None else head_dim, share if value_dim is None else value_dim
