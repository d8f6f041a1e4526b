"""Recurrent decoders: with one context vector, attention after or before the step, and to an image."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Self, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from vitrail.nn.attention import AttentionLayer
from vitrail.nn.blocks import Dropout
from vitrail.nn.linear import Linear
from vitrail.nn.recurrent import CELLS, Cell, CellName, CellState, Encoding, draw_by_block
from vitrail.nn.scores import AdditiveScore, DotScore, Score, ScoreName
from vitrail.nn.tap import Scored, TokenGrids
from vitrail.nn.tokens import Grid

Mask = Bool[Tensor, "batch 1 1 keys"]
Inputs = Float[Tensor, "batch steps dim"]
"""What the steps of a sentence read, such as token embeddings."""
Outputs = Float[Tensor, "batch steps hidden"]


class ContextMemory(NamedTuple):
    """A context's keys and values for attention at every step."""

    keys: Float[Tensor, "batch 1 keys score_dim"]
    """Keys, projected once."""
    values: Float[Tensor, "batch 1 keys value_dim"]
    """The context itself, or its projection (see ``Readout``), which is averaged."""
    may_attend: Mask | None = None
    """False for padding; None without any."""

    @property
    def num_sentences(self) -> int:
        return self.keys.shape[0]


class ContextAttention(AttentionLayer):
    """Single-head attention whose values are the context itself, with a choice of scores.

    The keys do not depend on the query, so a recurrent decoder computes them once, with ``remember``, and
    attends at each step.

    Args:
        context_dim: dot products want it equal to ``query_dim``.
        hidden_dim: of the additive score, by default ``query_dim``; other scores have none.

    Paper: Bahdanau et al. 2015, equations 5 and 6 and section A.1.2 (additive); Luong et al. 2015,
    equation 8 (dot, general); Vaswani et al. 2017, equation 1 (scaled dot).
    """

    def __init__(
        self,
        query_dim: int,
        context_dim: int,
        *,
        score: ScoreName = "additive",
        hidden_dim: int | None = None,
    ) -> None:
        super().__init__()
        self.query_projection: nn.Module = nn.Identity()
        self.key_projection: nn.Module = nn.Identity()
        self.score: Score
        if score == "additive":
            hidden_dim = hidden_dim or query_dim
            self.query_projection = nn.Linear(query_dim, hidden_dim, bias=False)
            self.key_projection = nn.Linear(context_dim, hidden_dim, bias=False)
            self.score = AdditiveScore(1, hidden_dim)
        elif score == "general":
            # W belongs to the keys, where it is applied once.
            self.key_projection = nn.Linear(context_dim, query_dim, bias=False)
            self.score = DotScore(scale=1.0)
        else:
            assert query_dim == context_dim, f"no dot product of {query_dim} and {context_dim} channels"
            self.score = DotScore(scale=None if score == "scaled_dot" else 1.0)

    def remember(
        self, context: Float[Tensor, "batch keys context_dim"], may_attend: Mask | None = None
    ) -> ContextMemory:
        return ContextMemory(self.key_projection(context)[:, None], context[:, None], may_attend)

    def forward(
        self,
        query: Float[Tensor, "batch queries query_dim"],
        memory: ContextMemory,
        *,
        is_recorded: bool = True,
    ) -> Float[Tensor, "batch queries value_dim"]:
        """Return the average of the context for each query, for one or all steps at a time.

        Args:
            is_recorded: whether a tap is called; not for one of many steps that are recorded together.
        """
        return self.average(
            self.query_projection(query)[:, None],
            memory.keys,
            memory.values,
            score=self.score,
            may_attend=memory.may_attend,
            kind="cross",
            is_recorded=is_recorded,
        )[:, 0]


class SummaryMemory(NamedTuple):
    """What a decoder without attention reads of the sentences."""

    summary: Float[Tensor, "batch hidden"]
    """The context vector."""
    share: Float[Tensor, "batch 1 hidden"]
    """Its projection in the attentional vector."""

    @property
    def num_sentences(self) -> int:
        return len(self.summary)


Memory = TypeVar("Memory", ContextMemory, SummaryMemory)


@dataclass(frozen=True)
class RecurrentState(Generic[Memory]):
    """A recurrent decoder's ``DecoderState``."""

    layers: tuple[CellState, ...]
    """Of each layer, one row per hypothesis."""
    fed: Float[Tensor, "rows hidden"] | None
    """The newest attentional vector, with input feeding."""
    memory: Memory
    """What depends on the sentence alone, held once for all its hypotheses."""

    @property
    def num_rows(self) -> int:
        return len(self.layers[0][0])

    def expand(self, count: int) -> Self:
        return self._change_rows(lambda tensor: tensor.repeat_interleave(count, dim=0))

    def select(self, rows: Int[Tensor, " rows"]) -> Self:
        return self._change_rows(lambda tensor: tensor.index_select(0, rows))

    def keep(self, sentences: Int[Tensor, " kept"]) -> Self:
        count = self.num_rows // self.memory.num_sentences
        rows = sentences[:, None] * count + torch.arange(count, device=sentences.device)
        memory = tree_map_only(Tensor, lambda tensor: tensor.index_select(0, sentences), self.memory)
        return dataclasses.replace(self.select(rows.flatten()), memory=memory)

    def _change_rows(self, change: Callable[[Tensor], Tensor]) -> Self:
        layers, fed = tree_map_only(Tensor, change, (self.layers, self.fed))
        return dataclasses.replace(self, layers=layers, fed=fed)


class RecurrentStack(nn.Module):
    """Stacked unidirectional recurrent layers, initialised from a projected summary.

    Paper: the initial state ``tanh(W summary)`` is Bahdanau et al. 2015, section A.2.2, with the last states
    of both directions in place of one, and for every layer; dropout: Zaremba et al. 2014, section 3.
    """

    def __init__(self, dim: int, hidden_dim: int, *, depth: int, cell: CellName, dropout: float) -> None:
        super().__init__()
        widths = [dim, *[hidden_dim] * (depth - 1)]
        self.cells = nn.ModuleList(CELLS[cell](width, hidden_dim) for width in widths)
        self.beginning = Linear(hidden_dim, depth * CELLS[cell].num_states * hidden_dim)
        self.num_gates, self.num_states = CELLS[cell].num_gates, CELLS[cell].num_states
        draw_by_block(self.beginning.weight, depth * self.num_states)
        nn.init.zeros_(self.beginning.bias)
        self.dropout = Dropout(dropout)

    def begin(self, summary: Float[Tensor, "rows hidden"]) -> tuple[CellState, ...]:
        states = self.beginning(summary).tanh().chunk(len(self.cells) * self.num_states, dim=-1)
        return tuple(
            tuple(states[first : first + self.num_states]) for first in range(0, len(states), self.num_states)
        )

    def read(
        self, x: Float[Tensor, "steps batch dim"], layers: tuple[CellState, ...]
    ) -> Float[Tensor, "steps batch hidden"]:
        """Return the top layer's hidden states after each step, all at once."""
        cell: Cell
        for index, (cell, state) in enumerate(zip(self.cells, layers, strict=True)):  # type: ignore[assignment]
            x = cell.read(self.dropout(x) if index else x, state)
        return x

    def enter(self, x: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch gates"]:
        """Return the input's part of the lowest layer's gates, for any number of steps at once."""
        lowest: Cell = self.cells[0]  # type: ignore[assignment]
        return lowest.enter(x)

    def advance(
        self, gates: Float[Tensor, "rows gates"], layers: tuple[CellState, ...]
    ) -> tuple[CellState, ...]:
        """Take one step; ``gates`` is the result of ``enter``."""
        new: list[CellState] = []
        cell: Cell
        for cell, state in zip(self.cells, layers, strict=True):  # type: ignore[assignment]
            if new:
                gates = cell.enter(self.dropout(new[-1][0]))
            new.append(cell.advance(gates, state))
        return tuple(new)


class Readout(nn.Module):
    """The attentional vector ``tanh(W [c; h])`` of a state and its context.

    The context's part of ``W`` is applied once to each encoder state, before averaging.

    Args:
        attention: makes the context; None takes the encoder's summary at every step (Cho et al. 2014, section
            A.1.1, where the output reads the summary besides the state), in the same form.

    Paper: Luong et al. 2015, equation 5.
    """

    def __init__(self, hidden_dim: int, attention: ContextAttention | None = None) -> None:
        super().__init__()
        self.attention = attention
        self.of_context = Linear(hidden_dim, hidden_dim, bias=False)
        self.of_state = Linear(hidden_dim, hidden_dim, bias=False)
        nn.init.xavier_uniform_(self.of_context.weight)
        nn.init.xavier_uniform_(self.of_state.weight)

    def remember(self, encoding: Encoding, may_attend: Mask) -> ContextMemory | SummaryMemory:
        if self.attention is None:  # the summary needs no mask
            return SummaryMemory(encoding.summary, self.of_context(encoding.summary)[:, None])
        memory = self.attention.remember(encoding.states, may_attend)
        return memory._replace(values=self.of_context(memory.values))

    def forward(
        self, hidden: Outputs, memory: ContextMemory | SummaryMemory, *, is_recorded: bool = True
    ) -> Outputs:
        if isinstance(memory, SummaryMemory):
            context = memory.share
        else:
            assert self.attention is not None
            context = self.attention(hidden, memory, is_recorded=is_recorded)
        return (context + self.of_state(hidden)).tanh()


class AttentionDecoder(nn.Module):
    """Decode with attention after the recurrence, which training computes for all steps at once.

    Paper: Luong et al. 2015, section 3.1.
    """

    def __init__(self, stack: RecurrentStack, readout: Readout) -> None:
        super().__init__()
        self.stack, self.readout = stack, readout

    def start(self, encoding: Encoding, may_attend: Mask) -> RecurrentState[Any]:
        """Return the state before the first step."""
        layers = self.stack.begin(encoding.summary)
        return RecurrentState(layers, None, self.readout.remember(encoding, may_attend))

    def forward(self, x: Inputs, state: RecurrentState[Any]) -> Outputs:
        hidden = self.stack.read(x.transpose(0, 1), state.layers)
        return self.readout(hidden.transpose(0, 1), state.memory)

    def step(
        self, x: Float[Tensor, "rows dim"], state: RecurrentState[Any]
    ) -> tuple[Float[Tensor, "rows hidden"], RecurrentState[Any]]:
        layers = self.stack.advance(self.stack.enter(x), state.layers)
        vectors = self.readout(_by_sentence(layers, state.memory), state.memory).flatten(0, 1)
        return vectors, dataclasses.replace(state, layers=layers)


class SummaryDecoder(AttentionDecoder):
    """Decode from one context vector, which every step reads beside the last token: the bottleneck.

    Args:
        stack: reads tokens and summary, concatenated.
        readout: without attention.

    Paper: Cho et al. 2014, equation 8; Sutskever et al. 2014, section 2, begin with the summary alone.
    """

    def forward(self, x: Inputs, state: RecurrentState[SummaryMemory]) -> Outputs:
        summaries = state.memory.summary[:, None].expand(-1, x.shape[1], -1)
        return super().forward(torch.cat((x, summaries), dim=-1), state)

    def step(
        self, x: Float[Tensor, "rows dim"], state: RecurrentState[SummaryMemory]
    ) -> tuple[Float[Tensor, "rows hidden"], RecurrentState[SummaryMemory]]:
        count = state.num_rows // state.memory.num_sentences
        summaries = state.memory.summary.repeat_interleave(count, dim=0)
        return super().step(torch.cat((x, summaries), dim=-1), state)


class InputFeedingDecoder(AttentionDecoder):
    """Decode with input feeding: each step also reads the previous attentional vector.

    Training steps depend on one another, so they run one by one; the tokens' part of the gates is computed
    for all of them before.

    Paper: Luong et al. 2015, section 3.3.
    """

    def __init__(self, stack: RecurrentStack, readout: Readout) -> None:
        super().__init__(stack, readout)
        hidden_dim = readout.of_state.in_features
        self.feed = Linear(hidden_dim, stack.num_gates * hidden_dim, bias=False)
        draw_by_block(self.feed.weight, stack.num_gates)

    def start(self, encoding: Encoding, may_attend: Mask) -> RecurrentState[ContextMemory]:
        """Return the state before the first step; the first attentional vector is zero."""
        state = super().start(encoding, may_attend)
        return dataclasses.replace(state, fed=torch.zeros_like(encoding.summary))

    def forward(self, x: Inputs, state: RecurrentState[ContextMemory]) -> Outputs:
        vectors, queries = [], []
        for gates in self.stack.enter(x.transpose(0, 1)).unbind():
            vector, state = self._advance(gates, state, is_recorded=False)
            vectors.append(vector)
            queries.append(state.layers[-1][0])
        attention = self.readout.attention
        assert attention is not None
        if attention.tap is not None:
            # One map of all steps, as from a decoder that computes them at once.
            attention(torch.stack(queries, dim=1), state.memory)
        return torch.stack(vectors, dim=1)

    def step(
        self, x: Float[Tensor, "rows dim"], state: RecurrentState[ContextMemory]
    ) -> tuple[Float[Tensor, "rows hidden"], RecurrentState[ContextMemory]]:
        return self._advance(self.stack.enter(x), state)

    def _advance(
        self, gates: Tensor, state: RecurrentState[ContextMemory], *, is_recorded: bool = True
    ) -> tuple[Tensor, RecurrentState[ContextMemory]]:
        assert state.fed is not None
        layers = self.stack.advance(torch.addmm(gates, state.fed, self.feed.weight.T), state.layers)
        hidden = _by_sentence(layers, state.memory)
        fed = self.readout(hidden, state.memory, is_recorded=is_recorded).flatten(0, 1)
        return fed, dataclasses.replace(state, layers=layers, fed=fed)


def _by_sentence(
    layers: tuple[CellState, ...], memory: ContextMemory | SummaryMemory
) -> Float[Tensor, "batch queries hidden"]:
    """Return the top layer's hidden states, with a sentence's hypotheses as its queries."""
    return layers[-1][0].unflatten(0, (memory.num_sentences, -1))


class ContextFeedingDecoder(nn.Module):
    """Attend with the previous state, then read the context beside the last token.

    ``c = sum_j softmax(a(s, h_j)) h_j`` and ``s' = f(s, y, c)``; the output layer reads the greater of each
    pair of ``U s' + V y + C c``.

    Paper: Bahdanau et al. 2015, section 3.1 and A.2.2.
    Departs from the paper: the output reads the new state, as in equation 4, where A.2.2 has the previous.
    """

    def __init__(
        self, stack: RecurrentStack, attention: ContextAttention, *, dim: int, hidden_dim: int
    ) -> None:
        super().__init__()
        self.stack, self.attention = stack, attention
        self.feed = Linear(hidden_dim, stack.num_gates * hidden_dim, bias=False)
        self.of_state = Linear(hidden_dim, 2 * hidden_dim, bias=False)
        self.of_token = Linear(dim, 2 * hidden_dim, bias=False)
        self.of_context = Linear(hidden_dim, 2 * hidden_dim, bias=False)
        draw_by_block(self.feed.weight, stack.num_gates)
        for layer in (self.of_state, self.of_token, self.of_context):
            nn.init.xavier_uniform_(layer.weight)

    def start(self, encoding: Encoding, may_attend: Mask) -> RecurrentState[ContextMemory]:
        memory = self.attention.remember(encoding.states, may_attend)
        return RecurrentState(self.stack.begin(encoding.summary), None, memory)

    def forward(self, x: Inputs, state: RecurrentState[ContextMemory]) -> Outputs:
        layers, states, contexts = state.layers, [state.layers[-1][0]], []
        for gates in self.stack.enter(x.transpose(0, 1)).unbind():
            layers, context = self._advance(gates, layers, state.memory, is_recorded=False)
            states.append(layers[-1][0])
            contexts.append(context)
        if self.attention.tap is not None:
            # One map of all steps, as from a decoder that computes them at once.
            self.attention(torch.stack(states[:-1], dim=1), state.memory)
        return self._read_out(x, torch.stack(states[1:], dim=1), torch.stack(contexts, dim=1))

    def step(
        self, x: Float[Tensor, "rows dim"], state: RecurrentState[ContextMemory]
    ) -> tuple[Float[Tensor, "rows hidden"], RecurrentState[ContextMemory]]:
        layers, context = self._advance(self.stack.enter(x), state.layers, state.memory)
        return self._read_out(x, layers[-1][0], context), dataclasses.replace(state, layers=layers)

    def _advance(
        self, gates: Tensor, layers: tuple[CellState, ...], memory: ContextMemory, *, is_recorded: bool = True
    ) -> tuple[tuple[CellState, ...], Tensor]:
        """Take one step; return the states, and the context that they were computed from."""
        context = self.attention(_by_sentence(layers, memory), memory, is_recorded=is_recorded).flatten(0, 1)
        return self.stack.advance(torch.addmm(gates, context, self.feed.weight.T), layers), context

    def _read_out(self, x: Tensor, hidden: Tensor, context: Tensor) -> Float[Tensor, "*batch hidden"]:
        """Return the maxout of state, token and context."""
        sums = self.of_state(hidden) + self.of_token(x) + self.of_context(context)
        return sums.unflatten(-1, (-1, 2)).amax(dim=-1)


class Written(NamedTuple):
    """Output of some decoding steps."""

    vectors: Float[Tensor, "batch captions steps dim"]
    """Input of the output layer."""
    weights: Float[Tensor, "batch captions steps patches"]
    """Attention weights of each step, before the gate."""


class ImageAttentionDecoder(nn.Module):
    """Attend to image features with the state so far, then read the context beside the last word.

    ``z = beta sum_i alpha_i a_i`` with ``alpha = softmax(v tanh(W h + U a))`` and ``beta = sigmoid(w h)``;
    the recurrent layers read the word embedding and ``z``; the next word is predicted from ``E y + L_h h' +
    L_z z``. Captions of an image share its keys, which are computed once.

    Paper: Xu et al. 2015, equations 4 to 9 and 13, section 4.2.1 (the gate).
    Departs from the paper: the image's mean is projected to the first states by one layer with tanh.
    """

    def __init__(self, stack: RecurrentStack, *, dim: int, hidden_dim: int, attention_dim: int) -> None:
        super().__init__()
        self.stack = stack
        self.attention = ContextAttention(hidden_dim, hidden_dim, score="additive", hidden_dim=attention_dim)
        self.gate = Linear(hidden_dim, 1)
        self.feed = Linear(hidden_dim, stack.num_gates * hidden_dim, bias=False)
        self.of_state = Linear(hidden_dim, dim, bias=False)
        self.of_glimpse = Linear(hidden_dim, dim, bias=False)
        draw_by_block(self.feed.weight, stack.num_gates)
        for layer in (self.gate, self.of_state, self.of_glimpse):
            nn.init.xavier_uniform_(layer.weight)
        nn.init.zeros_(self.gate.bias)

    def start(self, features: Float[Tensor, "batch patches hidden"]) -> RecurrentState[ContextMemory]:
        """Return the state before the first step, one row per image."""
        memory = self.attention.remember(features)
        return RecurrentState(self.stack.begin(features.mean(dim=1)), None, memory)

    def forward(
        self,
        x: Float[Tensor, "batch captions steps dim"],
        state: RecurrentState[ContextMemory],
        *,
        grid: Grid | None = None,
    ) -> Written:
        """Return the output of all steps under teacher forcing; the state has one row per caption.

        Args:
            grid: rows and columns of the image features, for recorded maps.
        """
        images, captions, steps = x.shape[:3]
        layers, memory = state.layers, state.memory
        entered = self.stack.enter(x.flatten(0, 1).transpose(0, 1))  # steps rows gates
        states, glimpses, weights = [layers[-1][0]], [], []
        for gates in entered.unbind():
            layers, glimpse, shares = self._advance(gates, layers, memory)
            states.append(layers[-1][0])
            glimpses.append(glimpse)
            weights.append(shares)
        seen = torch.stack(weights, dim=2)  # batch captions steps patches
        self._show(seen.flatten(0, 1), states[:-1], memory, grid)
        change = self.of_state(torch.stack(states[1:], dim=1)) + self.of_glimpse(torch.stack(glimpses, dim=1))
        return Written(x + change.reshape(images, captions, steps, -1), seen)

    def step(
        self, x: Float[Tensor, "rows dim"], state: RecurrentState[ContextMemory]
    ) -> tuple[Float[Tensor, "rows dim"], RecurrentState[ContextMemory]]:
        """Return the output layer's input for each row's next word, and the new state."""
        layers, glimpse, shares = self._advance(self.stack.enter(x), state.layers, state.memory)
        self._show(shares.flatten(0, 1)[:, None], [state.layers[-1][0]], state.memory, None)
        vectors = x + self.of_state(layers[-1][0]) + self.of_glimpse(glimpse)
        return vectors, dataclasses.replace(state, layers=layers)

    def _advance(
        self, gates: Tensor, layers: tuple[CellState, ...], memory: ContextMemory
    ) -> tuple[tuple[CellState, ...], Tensor, Tensor]:
        """Take one step; return the states, the gated context, and the weights by image."""
        hidden, asking = layers[-1][0], _by_sentence(layers, memory)  # batch captions hidden
        score = self.attention.score
        assert isinstance(score, AdditiveScore), "the weights are taken from its scores"
        scores = score(self.attention.query_projection(asking)[:, None], memory.keys)
        shares = scores.float().softmax(dim=-1).to(memory.values.dtype)  # batch 1 captions patches
        glimpse = (shares @ memory.values)[:, 0].flatten(0, 1)
        glimpse = glimpse * self.gate(hidden).sigmoid()
        layers = self.stack.advance(gates + self.feed(glimpse), layers)
        return layers, glimpse, shares[:, 0]

    def _show(self, weights: Tensor, states: list[Tensor], memory: ContextMemory, grid: Grid | None) -> None:
        """Show attention weights (rows queries keys) and the states that asked to the tap."""
        if self.attention.tap is None:
            return
        grids = None if grid is None else TokenGrids(queries=None, keys=grid)
        count = len(weights) // memory.num_sentences
        keys, values = (each.repeat_interleave(count, dim=0) for each in (memory.keys, memory.values))
        queries = self.attention.query_projection(torch.stack(states, dim=1))[:, None]
        assert isinstance(self.attention.score, AdditiveScore), "the weights are taken from its scores"
        scored = Scored(queries, keys, self.attention.score(queries, keys), None, None)
        self.attention.tap.take_weights(weights[:, None], kind="cross", grids=grids, scored=scored)
        self.attention.tap.take_result(values, weights[:, None] @ values)
