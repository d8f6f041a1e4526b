"""Attention in which queries and keys, but not values, know their places: DETR's, at every layer anew."""

from __future__ import annotations

from jaxtyping import Bool, Float
from torch import Tensor, nn

from vitrail.nn.attention import Places, Tap, attend
from vitrail.nn.linear import Linear


class PlacedAttention(nn.Module):
    """Attend with several heads to tokens whose positions are added where queries and keys are made.

    ``query = W_q (x + positions)``, ``key = W_k (context + context_positions)``, ``value = W_v context``.
    Query, key and value weights are one matrix.

    Args:
        dim: width of tokens, context and result.
        num_heads: number of heads; divides ``dim``.
        dropout: probability that an attention weight is dropped in training.

    Paper: Carion et al. 2020, appendix A.3, figure 10.
    """

    tap: Tap | None
    """Called with what the weights are made of, at every forward pass; see ``interpret.record``."""

    def __init__(self, dim: int, num_heads: int, *, dropout: float = 0.0) -> None:
        super().__init__()
        assert dim % num_heads == 0, f"{num_heads} heads do not divide {dim} channels"
        self.num_heads, self.head_dim, self.dropout = num_heads, dim // num_heads, dropout
        self.qkv = Linear(dim, 3 * dim)
        self.projection = Linear(dim, dim)
        self.tap = None

    def forward(
        self,
        x: Float[Tensor, "batch queries dim"],
        *,
        positions: Float[Tensor, "#batch queries dim"],
        context: Float[Tensor, "batch keys dim"] | None = None,
        context_positions: Float[Tensor, "#batch keys dim"] | None = None,
        may_attend: Bool[Tensor, "#batch #heads #queries #keys"] | None = None,
        grid: tuple[int, int] | None = None,
    ) -> Float[Tensor, "batch queries dim"]:
        """Return new tokens.

        Args:
            x: the tokens that ask.
            positions: theirs.
            context: the tokens that answer; None means ``x`` itself, with its positions.
            context_positions: of the context; None only where there is no context.
            may_attend: True where a query may look at a key.
            grid: rows and columns of the answering tokens where they are an image's; only recorded maps use
                it.
        """
        query, key, value = self._project(x, positions, context, context_positions)
        kind = "self" if context is None else "cross"
        if self.tap is not None:
            places = None if grid is None else Places(queries=grid if context is None else None, keys=grid)
            self.tap(query, key, bias=None, may_attend=may_attend, scale=None, kind=kind, places=places)
        dropout = self.dropout if self.training else 0.0
        out = attend(query, key, value, may_attend=may_attend, dropout=dropout)
        return self.projection(out.transpose(1, 2).flatten(2))

    def _project(
        self, x: Tensor, positions: Tensor, context: Tensor | None, context_positions: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        dim = x.shape[-1]
        if context is None:
            both = self.qkv.part(x + positions, 0, 2 * dim)  # b n 2d
            query, key = (
                both.unflatten(-1, (2, self.num_heads, self.head_dim)).permute(2, 0, 3, 1, 4).unbind()
            )
            return query, key, self._part_heads(self.qkv.part(x, 2 * dim, 3 * dim))
        assert context_positions is not None, "a context without positions"
        query = self.qkv.part(x + positions, 0, dim)
        key = self.qkv.part(context + context_positions, dim, 2 * dim)
        value = self.qkv.part(context, 2 * dim, 3 * dim)
        return self._part_heads(query), self._part_heads(key), self._part_heads(value)

    def _part_heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)  # b h n d
