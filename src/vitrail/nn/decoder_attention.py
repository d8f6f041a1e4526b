"""The two attentions of a decoder for whole sequences; ``nn.decoder_step`` has those of newest tokens."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from jaxtyping import Bool, Float
from torch import Tensor, nn

from vitrail.nn.attention import PositionScheme, Tap, attend
from vitrail.nn.linear import Linear

Mask = Bool[Tensor, "#batch #heads #queries #keys"]


class StepwiseScheme(PositionScheme, Protocol):
    """A position scheme that can place tokens one after the other."""

    def place_newest(self, query_key: Tensor, *, num_before: int) -> tuple[Tensor, Tensor | None]:
        """Return queries and keys of hypotheses' newest tokens with their place, and what scores add.

        All of them stand behind ``num_before`` tokens. What is added has one entry for each of these and
        one for the newest (1 heads 1 steps).

        Args:
            query_key: the queries, then the keys (2 sentences heads hypotheses dim).
            num_before: tokens of each hypothesis before its newest.
        """
        ...


class CausalAttention(nn.Module):
    """Attend to the tokens written so far, with several heads.

    Args:
        dim: width of the tokens.
        num_heads: number of heads; divides ``dim``.
        dropout: probability that an attention weight is dropped in training.
        positions: a ``StepwiseScheme``, such as those of ``nn.relative`` and ``nn.rotary`` for sequences;
            None leaves positions to the tokens.

    Paper: Vaswani et al. 2017, sections 3.2.2 and 3.2.3, masked self-attention of the decoder.
    """

    tap: Tap | None
    """Called with what the weights of a whole sequence are made of; see ``interpret.record``."""

    def __init__(
        self, dim: int, num_heads: int, *, dropout: float = 0.0, positions: nn.Module | None = None
    ) -> None:
        super().__init__()
        assert dim % num_heads == 0, f"{num_heads} heads do not divide {dim} channels"
        self.num_heads, self.head_dim, self.dropout = num_heads, dim // num_heads, dropout
        self.qkv = Linear(dim, 3 * dim)
        self.positions = positions
        self.projection = Linear(dim, dim)
        self.tap = None

    def forward(
        self, x: Float[Tensor, "batch tokens dim"], *, may_attend: Mask
    ) -> Float[Tensor, "batch tokens dim"]:
        """Return new tokens of whole sequences.

        Args:
            x: the tokens.
            may_attend: True where a token may look at another, such as ``causal_mask``.
        """
        qkv = self.qkv(x).reshape(x.shape[0], -1, 3, self.num_heads, self.head_dim)
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind()  # b h n d
        bias = None
        if self.positions is not None:
            query, key, bias = self.positions.place(query, key, grid=None)  # type: ignore[operator]
        if self.tap is not None:
            self.tap(query, key, bias=bias, may_attend=may_attend, scale=None, kind="self", places=None)
        dropout = self.dropout if self.training else 0.0
        out = attend(query, key, value, bias=bias, may_attend=may_attend, dropout=dropout)
        return self.projection(out.transpose(1, 2).flatten(2))


class CrossMemory(NamedTuple):
    """A context as the heads of one layer read it at every step."""

    keys: Float[Tensor, "batch heads keys dim"]
    """What queries are compared with."""
    values: Float[Tensor, "batch heads keys dim"]
    """What is averaged."""


class CrossAttention(nn.Module):
    """Attend to a context with several heads; its keys and values are made once, by ``remember``.

    Args:
        dim: width of tokens, context and result.
        num_heads: number of heads; divides ``dim``.
        dropout: probability that an attention weight is dropped in training.

    Paper: Vaswani et al. 2017, section 3.2.3, "encoder-decoder attention".
    """

    tap: Tap | None
    """Called with what the weights are made of, at every forward pass; see ``interpret.record``."""

    def __init__(self, dim: int, num_heads: int, *, dropout: float = 0.0) -> None:
        super().__init__()
        assert dim % num_heads == 0, f"{num_heads} heads do not divide {dim} channels"
        self.num_heads, self.head_dim, self.dropout = num_heads, dim // num_heads, dropout
        self.query = Linear(dim, dim)
        self.key_value = Linear(dim, 2 * dim)
        self.projection = Linear(dim, dim)
        self.tap = None

    def remember(self, context: Float[Tensor, "batch keys dim"]) -> CrossMemory:
        """Return the keys and values of a context, for any number of queries."""
        both = self.key_value(context).reshape(*context.shape[:2], 2, self.num_heads, self.head_dim)
        return CrossMemory(*both.permute(2, 0, 3, 1, 4).unbind())  # b h n d

    def forward(
        self,
        x: Float[Tensor, "batch queries dim"],
        memory: CrossMemory,
        *,
        bias: Float[Tensor, "#batch #heads #queries #keys"] | None = None,
        may_attend: Mask | None = None,
    ) -> Float[Tensor, "batch queries dim"]:
        """Return new tokens.

        Args:
            x: the tokens that ask.
            memory: what ``remember`` returned.
            bias: added to the scaled scores.
            may_attend: True where a query may look at a key, such as ``padding_mask`` of the context.
        """
        query = self.query(x).reshape(*x.shape[:2], self.num_heads, self.head_dim).transpose(1, 2)  # b h n d
        if self.tap is not None:
            self.tap(
                query, memory.keys, bias=bias, may_attend=may_attend, scale=None, kind="cross", places=None
            )
        dropout = self.dropout if self.training else 0.0
        out = attend(query, memory.keys, memory.values, bias=bias, may_attend=may_attend, dropout=dropout)
        return self.projection(out.transpose(1, 2).flatten(2))
