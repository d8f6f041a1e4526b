"""Recurrent decoders: with one vector for the whole sentence, with attention, and with input feeding."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.nn.context import ContextAttention
from vitrail.nn.dropout import Dropout
from vitrail.nn.linear import Linear
from vitrail.nn.recurrent import CELLS, Cell, CellName, CellState, Encoding, draw_by_block
from vitrail.nn.recurrent_state import AttentionMemory, Mask, Memory, RecurrentState, SummaryMemory


class RecurrentStack(nn.Module):
    """Recurrent layers in one direction, each above the other, that begin with a projected summary.

    Args:
        dim: width of what the lowest layer reads.
        hidden_dim: width of the states, and of the summary.
        depth: number of layers.
        cell: of each layer.
        dropout: probability that a value is dropped in training between two layers.

    Paper: the beginning ``tanh(W summary)`` is Bahdanau et al. 2015, section A.2.2, with both directions'
    last states in the place of one, and for every layer; dropout: Zaremba et al. 2014, section 3.
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
        """Return the layers' states before the first step."""
        states = self.beginning(summary).tanh().chunk(len(self.cells) * self.num_states, dim=-1)
        return tuple(
            tuple(states[first : first + self.num_states]) for first in range(0, len(states), self.num_states)
        )

    def read(
        self, x: Float[Tensor, "steps batch dim"], layers: tuple[CellState, ...]
    ) -> Float[Tensor, "steps batch hidden"]:
        """Return the upper layer's hidden states after each step, all at once."""
        cell: Cell
        for index, (cell, state) in enumerate(zip(self.cells, layers, strict=True)):  # type: ignore[assignment]
            x = cell.read(self.dropout(x) if index else x, state)
        return x

    def enter(self, x: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch gates"]:
        """Return what the input adds to the lowest layer's gates, for any number of steps at once."""
        lowest: Cell = self.cells[0]  # type: ignore[assignment]
        return lowest.enter(x)

    def advance(
        self, gates: Float[Tensor, "rows gates"], layers: tuple[CellState, ...]
    ) -> tuple[CellState, ...]:
        """Take one step.

        Args:
            gates: of the lowest layer, before it adds what it remembers.
            layers: before the step.
        """
        new: list[CellState] = []
        cell: Cell
        for cell, state in zip(self.cells, layers, strict=True):  # type: ignore[assignment]
            if new:
                gates = cell.enter(self.dropout(new[-1][0]))
            new.append(cell.advance(gates, state))
        return tuple(new)


class AttentionReadout(nn.Module):
    """Make the attentional vector ``tanh(W [c; h])`` of a state and of the context that it attends to.

    What ``W`` makes of the context is computed once for each state of the encoder, before it is averaged.

    Args:
        attention: of the decoder's state to those of the encoder.
        hidden_dim: width of all of them.

    Paper: Luong et al. 2015, equation 5.
    """

    def __init__(self, attention: ContextAttention, hidden_dim: int) -> None:
        super().__init__()
        self.attention = attention
        self.of_context = Linear(hidden_dim, hidden_dim, bias=False)
        self.of_state = Linear(hidden_dim, hidden_dim, bias=False)
        nn.init.xavier_uniform_(self.of_context.weight)
        nn.init.xavier_uniform_(self.of_state.weight)

    def remember(self, encoding: Encoding, may_attend: Mask) -> AttentionMemory:
        """Return what does not change from step to step."""
        memory = self.attention.remember(encoding.states)
        return AttentionMemory(memory._replace(values=self.of_context(memory.values)), may_attend)

    def forward(
        self, hidden: Float[Tensor, "batch queries hidden"], memory: AttentionMemory
    ) -> Float[Tensor, "batch queries hidden"]:
        """Return the attentional vector of each state."""
        context = self.attention(hidden, memory.context, may_attend=memory.may_attend)
        return self.join(context, hidden)

    def join(
        self, context: Float[Tensor, "batch queries hidden"], hidden: Float[Tensor, "batch queries hidden"]
    ) -> Float[Tensor, "batch queries hidden"]:
        """Return the attentional vector of what was attended to and of the state that attended."""
        return (context + self.of_state(hidden)).tanh()


class SummaryReadout(nn.Module):
    """Make the attentional vector with the encoder's summary as the context of every step.

    Args:
        hidden_dim: width of states and summary.

    Paper: Cho et al. 2014, section A.1.1, where the output reads the summary besides the state; the form is
    that of Luong et al. 2015, equation 5, so that a model with attention has no other parts.
    """

    def __init__(self, hidden_dim: int) -> None:
        super().__init__()
        self.of_context = Linear(hidden_dim, hidden_dim, bias=False)
        self.of_state = Linear(hidden_dim, hidden_dim, bias=False)
        nn.init.xavier_uniform_(self.of_context.weight)
        nn.init.xavier_uniform_(self.of_state.weight)

    def remember(self, encoding: Encoding) -> SummaryMemory:
        """Return what does not change from step to step."""
        return SummaryMemory(encoding.summary, self.of_context(encoding.summary)[:, None])

    def forward(
        self, hidden: Float[Tensor, "batch queries hidden"], memory: SummaryMemory
    ) -> Float[Tensor, "batch queries hidden"]:
        """Return the attentional vector of each state."""
        return (memory.share + self.of_state(hidden)).tanh()


class SummaryDecoder(nn.Module):
    """Write a sentence from one vector, which every step reads beside the last token: the bottleneck.

    Args:
        stack: reads tokens and summary, side by side.
        readout: makes what is written of a state.

    Paper: Cho et al. 2014, equation 8; Sutskever et al. 2014, section 2, begin with the summary alone.
    """

    def __init__(self, stack: RecurrentStack, readout: SummaryReadout) -> None:
        super().__init__()
        self.stack, self.readout = stack, readout

    def start(self, encoding: Encoding, may_attend: Mask) -> RecurrentState[SummaryMemory]:
        """Return the state before the first step; the summary knows of no padding."""
        return RecurrentState(self.stack.begin(encoding.summary), None, self.readout.remember(encoding))

    def forward(
        self, x: Float[Tensor, "batch steps dim"], state: RecurrentState[SummaryMemory]
    ) -> Float[Tensor, "batch steps hidden"]:
        """Return the attentional vectors of all steps from the first on."""
        memory = state.memory
        summaries = memory.summary[:, None].expand(-1, x.shape[1], -1)
        hidden = self.stack.read(torch.cat((x, summaries), dim=-1).transpose(0, 1), state.layers)
        return self.readout(hidden.transpose(0, 1), memory)

    def step(
        self, x: Float[Tensor, "rows dim"], state: RecurrentState[SummaryMemory]
    ) -> tuple[Float[Tensor, "rows hidden"], RecurrentState[SummaryMemory]]:
        """Return the attentional vector of each row after one more token, and the state after it."""
        memory = state.memory
        summaries = memory.summary.repeat_interleave(state.num_rows // memory.num_sentences, dim=0)
        layers = self.stack.advance(self.stack.enter(torch.cat((x, summaries), dim=-1)), state.layers)
        vectors = self.readout(_by_sentence(layers, state.memory), memory).flatten(0, 1)
        return vectors, dataclasses.replace(state, layers=layers)


class AttentionDecoder(nn.Module):
    """Write a sentence with attention after the recurrence, which all steps do at once in training.

    Args:
        stack: reads the tokens.
        readout: attends, and makes what is written.

    Paper: Luong et al. 2015, section 3.1.
    """

    def __init__(self, stack: RecurrentStack, readout: AttentionReadout) -> None:
        super().__init__()
        self.stack, self.readout = stack, readout

    def start(self, encoding: Encoding, may_attend: Mask) -> RecurrentState[AttentionMemory]:
        """Return the state before the first step."""
        memory = self.readout.remember(encoding, may_attend)
        return RecurrentState(self.stack.begin(encoding.summary), None, memory)

    def forward(
        self, x: Float[Tensor, "batch steps dim"], state: RecurrentState[AttentionMemory]
    ) -> Float[Tensor, "batch steps hidden"]:
        """Return the attentional vectors of all steps from the first on."""
        hidden = self.stack.read(x.transpose(0, 1), state.layers)
        return self.readout(hidden.transpose(0, 1), state.memory)

    def step(
        self, x: Float[Tensor, "rows dim"], state: RecurrentState[AttentionMemory]
    ) -> tuple[Float[Tensor, "rows hidden"], RecurrentState[AttentionMemory]]:
        """Return the attentional vector of each row after one more token, and the state after it."""
        layers = self.stack.advance(self.stack.enter(x), state.layers)
        vectors = self.readout(_by_sentence(layers, state.memory), state.memory).flatten(0, 1)
        return vectors, dataclasses.replace(state, layers=layers)


class InputFeedingDecoder(nn.Module):
    """Write a sentence with attention whose vector the next step reads beside the last token.

    The steps of training depend on one another, so that they run one by one; what the tokens add to the
    gates is computed for all of them before.

    Args:
        stack: reads the tokens.
        readout: attends, and makes what is written.

    Paper: Luong et al. 2015, section 3.3.
    """

    def __init__(self, stack: RecurrentStack, readout: AttentionReadout) -> None:
        super().__init__()
        self.stack, self.readout = stack, readout
        hidden_dim = readout.of_state.in_features
        self.feed = Linear(hidden_dim, stack.num_gates * hidden_dim, bias=False)
        draw_by_block(self.feed.weight, stack.num_gates)

    def start(self, encoding: Encoding, may_attend: Mask) -> RecurrentState[AttentionMemory]:
        """Return the state before the first step, which is fed zeros."""
        memory = self.readout.remember(encoding, may_attend)
        fed = torch.zeros_like(encoding.summary)
        return RecurrentState(self.stack.begin(encoding.summary), fed, memory)

    def forward(
        self, x: Float[Tensor, "batch steps dim"], state: RecurrentState[AttentionMemory]
    ) -> Float[Tensor, "batch steps hidden"]:
        """Return the attentional vectors of all steps from the first on."""
        assert state.fed is not None
        layers, fed, memory, attention = state.layers, state.fed, state.memory, self.readout.attention
        vectors, queries = [], []
        for gates in self.stack.enter(x.transpose(0, 1)).unbind():
            layers, fed = self._advance(gates, layers, fed, memory, attention.attend_unseen)
            vectors.append(fed)
            queries.append(layers[-1][0])
        if attention.tap is not None:
            # One map of all steps, as from a decoder that takes them at once.
            attention(torch.stack(queries, dim=1), memory.context, may_attend=memory.may_attend)
        return torch.stack(vectors, dim=1)

    def step(
        self, x: Float[Tensor, "rows dim"], state: RecurrentState[AttentionMemory]
    ) -> tuple[Float[Tensor, "rows hidden"], RecurrentState[AttentionMemory]]:
        """Return the attentional vector of each row after one more token, and the state after it."""
        assert state.fed is not None
        gates, attention = self.stack.enter(x), self.readout.attention
        layers, fed = self._advance(gates, state.layers, state.fed, state.memory, attention)
        return fed, dataclasses.replace(state, layers=layers, fed=fed)

    def _advance(
        self,
        gates: Tensor,
        layers: tuple[CellState, ...],
        fed: Tensor,
        memory: AttentionMemory,
        attend: Callable[..., Tensor],
    ) -> tuple[tuple[CellState, ...], Tensor]:
        layers = self.stack.advance(torch.addmm(gates, fed, self.feed.weight.T), layers)
        hidden = _by_sentence(layers, memory)
        context = attend(hidden, memory.context, may_attend=memory.may_attend)
        return layers, self.readout.join(context, hidden).flatten(0, 1)


def _by_sentence(layers: tuple[CellState, ...], memory: Memory) -> Float[Tensor, "batch queries hidden"]:
    """Return the upper layer's hidden states, where the hypotheses of a sentence are its queries."""
    return layers[-1][0].unflatten(0, (memory.num_sentences, -1))
