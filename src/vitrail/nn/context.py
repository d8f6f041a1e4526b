"""Attention of a decoder's state to a context of another width, with any score of the lectures."""

from __future__ import annotations

from typing import NamedTuple

from jaxtyping import Bool, Float
from torch import Tensor, nn

from vitrail.nn.attention import Places, Tap, attend_by
from vitrail.nn.scores import AdditiveScore, DotScore, Score, ScoreName


class ContextMemory(NamedTuple):
    """A context as its attention reads it at every step."""

    keys: Float[Tensor, "batch 1 keys score_dim"]
    """What the queries are scored with, projected once."""
    values: Float[Tensor, "batch 1 keys context_dim"]
    """The context itself, which is averaged."""


class ContextAttention(nn.Module):
    """Average a context with one head; the score is a choice, the values are the context itself.

    The keys do not depend on the query, so that a recurrent decoder makes them once, with ``remember``,
    and attends at each of its steps.

    Args:
        query_dim: width of what asks, such as a decoder's state.
        context_dim: width of the context; dot products want it equal to ``query_dim``.
        score: how well a key answers a query.
        hidden_dim: width of the additive score's hidden layer, by default ``query_dim``; other scores
            have none.
        dropout: probability that an attention weight is dropped in training.

    Paper: Bahdanau et al. 2015, equations 5 and 6 and section A.1.2 (additive); Luong et al. 2015,
    equation 8 (dot, general); Vaswani et al. 2017, equation 1 (scaled dot).
    """

    tap: Tap | None
    """Called with what the weights are made of, at every forward pass; see ``interpret.record``."""

    def __init__(
        self,
        query_dim: int,
        context_dim: int,
        *,
        score: ScoreName = "additive",
        hidden_dim: int | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.dropout = dropout
        self.query_projection: nn.Module = nn.Identity()
        self.key_projection: nn.Module = nn.Identity()
        self.score: Score
        if score == "additive":
            hidden_dim = hidden_dim or query_dim
            self.query_projection = nn.Linear(query_dim, hidden_dim, bias=False)
            self.key_projection = nn.Linear(context_dim, hidden_dim, bias=False)
            self.score = AdditiveScore(1, hidden_dim)
        elif score == "general":
            # W stands with the keys, where it is applied once.
            self.key_projection = nn.Linear(context_dim, query_dim, bias=False)
            self.score = DotScore(scale=1.0)
        else:
            assert query_dim == context_dim, f"no dot product of {query_dim} and {context_dim} channels"
            self.score = DotScore(scale=None if score == "scaled_dot" else 1.0)
        self.tap = None

    def remember(self, context: Float[Tensor, "batch keys context_dim"]) -> ContextMemory:
        """Return the context with its keys, for any number of steps."""
        return ContextMemory(self.key_projection(context)[:, None], context[:, None])

    def forward(
        self,
        query: Float[Tensor, "batch queries query_dim"],
        memory: ContextMemory,
        *,
        may_attend: Bool[Tensor, "#batch 1 #queries #keys"] | None = None,
        grid: tuple[int, int] | None = None,
    ) -> Float[Tensor, "batch queries context_dim"]:
        """Return the average of the context for each query.

        Args:
            query: what asks, one or all steps at a time.
            memory: what ``remember`` returned.
            may_attend: True where a query may look at a key, such as ``padding_mask`` of the context.
            grid: rows and columns of the context where it is an image's; only recorded maps use it.
        """
        places = None if grid is None else Places(queries=None, keys=grid)
        return self._attend(query, memory, may_attend, self.tap, places)

    def attend_unseen(
        self,
        query: Float[Tensor, "batch queries query_dim"],
        memory: ContextMemory,
        *,
        may_attend: Bool[Tensor, "#batch 1 #queries #keys"] | None = None,
    ) -> Float[Tensor, "batch queries context_dim"]:
        """Do as ``forward``, but show nothing to the tap: for one of many steps that are shown together."""
        return self._attend(query, memory, may_attend, None, None)

    def _attend(
        self,
        query: Tensor,
        memory: ContextMemory,
        may_attend: Tensor | None,
        tap: Tap | None,
        places: Places | None,
    ) -> Tensor:
        return attend_by(
            self.score,
            self.query_projection(query)[:, None],
            memory.keys,
            memory.values,
            may_attend=may_attend,
            dropout=self.dropout if self.training else 0.0,
            tap=tap,
            kind="cross",
            places=places,
        )[:, 0]
