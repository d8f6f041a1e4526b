"""Post-norm residual blocks whose attention is given positions at every layer: DETR's encoder and decoder."""

from __future__ import annotations

from jaxtyping import Bool, Float
from torch import Tensor, nn

from vitrail.nn.dropout import Dropout
from vitrail.nn.placed_attention import PlacedAttention

Mask = Bool[Tensor, "#batch #heads #queries #keys"]


class PlacedEncoderBlock(nn.Module):
    """``x = norm(x + attention(x))``, then ``x = norm(x + mlp(x))``.

    Args:
        dim: width of the tokens.
        attention: of the tokens to one another.
        mlp: transforms each token.
        dropout: probability that a value of a branch is dropped in training.

    Paper: Carion et al. 2020, appendix A.3, figure 10, left.
    """

    def __init__(self, dim: int, *, attention: PlacedAttention, mlp: nn.Module, dropout: float = 0.0) -> None:
        super().__init__()
        self.attention, self.attention_norm = attention, nn.LayerNorm(dim)
        self.mlp, self.mlp_norm = mlp, nn.LayerNorm(dim)
        self.dropout = Dropout(dropout)

    def forward(
        self,
        x: Float[Tensor, "batch cells dim"],
        *,
        positions: Float[Tensor, "#batch cells dim"],
        may_attend: Mask | None = None,
        grid: tuple[int, int] | None = None,
    ) -> Float[Tensor, "batch cells dim"]:
        """Return new tokens; positions, mask and grid are the attention's."""
        mixed = self.attention(x, positions=positions, may_attend=may_attend, grid=grid)
        x = self.attention_norm(x + self.dropout(mixed))
        return self.mlp_norm(x + self.dropout(self.mlp(x)))


class PlacedDecoderBlock(nn.Module):
    """``x = norm(x + branch(x))`` with self-attention, cross-attention and MLP as branches, in this order.

    Args:
        dim: width of queries and context.
        self_attention: of the queries to one another.
        cross_attention: of the queries to the context.
        mlp: transforms each query.
        dropout: probability that a value of a branch is dropped in training.

    Paper: Carion et al. 2020, appendix A.3, figure 10, right.
    """

    def __init__(
        self,
        dim: int,
        *,
        self_attention: PlacedAttention,
        cross_attention: PlacedAttention,
        mlp: nn.Module,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.self_attention, self.self_norm = self_attention, nn.LayerNorm(dim)
        self.cross_attention, self.cross_norm = cross_attention, nn.LayerNorm(dim)
        self.mlp, self.mlp_norm = mlp, nn.LayerNorm(dim)
        self.dropout = Dropout(dropout)

    def forward(
        self,
        x: Float[Tensor, "batch queries dim"],
        context: Float[Tensor, "batch cells dim"],
        *,
        positions: Float[Tensor, "#batch queries dim"],
        context_positions: Float[Tensor, "#batch cells dim"],
        may_attend: Mask | None = None,
        grid: tuple[int, int] | None = None,
    ) -> Float[Tensor, "batch queries dim"]:
        """Return new tokens of the queries.

        Args:
            x: what the queries know so far.
            context: the cells that they read.
            positions: of the queries.
            context_positions: of the cells.
            may_attend: True where a query may look at a cell.
            grid: rows and columns of the cells; only recorded maps use it.
        """
        x = self.self_norm(x + self.dropout(self.self_attention(x, positions=positions)))
        read = self.cross_attention(
            x,
            positions=positions,
            context=context,
            context_positions=context_positions,
            may_attend=may_attend,
            grid=grid,
        )
        x = self.cross_norm(x + self.dropout(read))
        return self.mlp_norm(x + self.dropout(self.mlp(x)))
