"""Recurrent layers of sequence models: cells, and encoders in one direction and in both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple, Self

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from vitrail.nn.blocks import Dropout
from vitrail.nn.tokens import Tokens

CellName = Literal["lstm", "gru", "tanh"]

ONE_LAYER: dict[str, Any] = {"has_biases": True, "num_layers": 1, "dropout": 0.0, "batch_first": False}
"""Of torch's kernels."""
CellState = tuple[Float[Tensor, "rows hidden"], ...]
"""State of a cell between two steps: its hidden state, and an LSTM's cell state after it."""


def run_lstm(
    x: Float[Tensor, "steps batch dim"],
    start: Sequence[Float[Tensor, "directions batch hidden"]],
    weights: Sequence[Tensor],
    *,
    training: bool,
    bidirectional: bool = False,
) -> Float[Tensor, "steps batch states"]:
    """Return the hidden states of a one-layer LSTM after each step, by torch's fused kernel."""
    first = [each.to(x.dtype) for each in start]
    states, _, _ = torch.lstm(
        x, first, list(weights), train=training, bidirectional=bidirectional, **ONE_LAYER
    )
    return states


def run_loop(
    kernel: Callable[..., tuple[Tensor, Tensor]],
    x: Float[Tensor, "steps batch dim"],
    start: Sequence[Float[Tensor, "1 batch hidden"]],
    weights: Sequence[Tensor],
    *,
    training: bool,
) -> Float[Tensor, "steps batch hidden"]:
    """Return the hidden states after each step of a cell of one state, by torch's own loop."""
    dtype = weights[0].dtype
    outputs, _ = kernel(
        x.to(dtype), start[0].to(dtype), list(weights), train=training, bidirectional=False, **ONE_LAYER
    )
    return outputs


class Cell(nn.Module):
    """A one-layer unidirectional recurrent layer, over whole sequences in one call or step by step."""

    linear = staticmethod(F.linear)

    num_gates: int
    num_states: int
    run: Callable[..., Tensor]
    """Torch's kernel for whole sequences."""

    def __init__(self, dim: int, hidden_dim: int) -> None:
        super().__init__()
        self.weights = RecurrentWeights(self.num_gates, dim, hidden_dim).draw()

    def read(
        self, x: Float[Tensor, "steps batch dim"], state: CellState | None = None
    ) -> Float[Tensor, "steps batch hidden"]:
        """Return the hidden states after each step; ``state`` None is zero."""
        start = self.weights.start(x, self.num_states) if state is None else state
        return self.run(x, [each[None] for each in start], self.weights.ordered(), training=self.training)

    def enter(self, x: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch gates"]:
        """Return the input's part of the gates, for any number of steps at once."""
        weights = self.weights
        return self.linear(x, weights.input_weight, weights.input_bias + weights.hidden_bias)

    def advance(self, gates: Float[Tensor, "rows gates"], state: CellState) -> CellState:
        """Take one step; ``gates`` is the result of ``enter``."""
        raise NotImplementedError


class LSTM(Cell):
    """``i, f, o = sigmoid(W x + U h)``, ``g = tanh(W x + U h)``, ``c' = f c + i g``, ``h' = o tanh(c')``.

    Each gate has its own weights, in torch's order i, f, g, o.

    Paper: Hochreiter and Schmidhuber 1997, with forget gates (Gers et al. 2000), whose bias begins at one
    (Jozefowicz et al. 2015, section 5).
    """

    run = staticmethod(run_lstm)
    num_gates, num_states = 4, 2

    def __init__(self, dim: int, hidden_dim: int) -> None:
        super().__init__(dim, hidden_dim)
        with torch.no_grad():
            self.weights.input_bias[hidden_dim : 2 * hidden_dim] = 1.0

    def advance(self, gates: Float[Tensor, "rows gates"], state: CellState) -> CellState:
        hidden, cell = state
        i, f, g, o = torch.addmm(gates, hidden, self.weights.hidden_weight.T).chunk(4, dim=-1)
        cell = torch.addcmul(f.sigmoid() * cell, i.sigmoid(), g.tanh())
        return o.sigmoid() * cell.tanh(), cell


class GRU(Cell):
    """``r, z = sigmoid(W x + U h)``, ``n = tanh(W x + r (U h))``, ``h' = (1 - z) n + z h``.

    Each gate has its own weights, in torch's order r, z, n.

    Paper: Cho et al. 2014, section 2.3.
    Departs from the paper: r gates ``U h`` and not ``h``, as in the kernels of cuDNN and torch.
    """

    run = staticmethod(partial(run_loop, torch.gru))
    num_gates, num_states = 3, 1

    def enter(self, x: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch gates"]:
        return self.linear(x, self.weights.input_weight, self.weights.input_bias)

    def advance(self, gates: Float[Tensor, "rows gates"], state: CellState) -> CellState:
        (hidden,) = state
        dim = hidden.shape[-1]
        inner = self.linear(hidden, self.weights.hidden_weight, self.weights.hidden_bias)
        r, z = (gates[:, : 2 * dim] + inner[:, : 2 * dim]).sigmoid().chunk(2, dim=-1)
        n = torch.addcmul(gates[:, 2 * dim :], r, inner[:, 2 * dim :]).tanh()
        return (torch.addcmul(n, z, hidden - n),)


class TanhCell(Cell):
    """The plain recurrent layer ``h' = tanh(W x + U h)``.

    Paper: Elman 1990, with tanh for the logistic function.
    """

    run = staticmethod(partial(run_loop, torch.rnn_tanh))
    num_gates, num_states = 1, 1

    def advance(self, gates: Float[Tensor, "rows hidden"], state: CellState) -> CellState:
        (hidden,) = state
        return (torch.addmm(gates, hidden, self.weights.hidden_weight.T).tanh(),)


CELLS: dict[CellName, type[Cell]] = {"lstm": LSTM, "gru": GRU, "tanh": TanhCell}


class RecurrentWeights(nn.Module):
    """The weights of a recurrent layer, gates stacked by rows; biases begin as zeros."""

    def __init__(self, num_gates: int, dim: int, hidden_dim: int) -> None:
        super().__init__()
        self.num_gates = num_gates
        self.input_weight = nn.Parameter(torch.empty(num_gates * hidden_dim, dim))
        self.hidden_weight = nn.Parameter(torch.empty(num_gates * hidden_dim, hidden_dim))
        self.input_bias = nn.Parameter(torch.zeros(num_gates * hidden_dim))
        self.hidden_bias = nn.Parameter(torch.zeros(num_gates * hidden_dim))

    def draw(self) -> Self:
        """Initialise each gate: input weights by Glorot and Bengio 2010, recurrent weights orthogonal
        (Bahdanau et al. 2015, section B.1)."""
        draw_by_block(self.input_weight, self.num_gates)
        with torch.no_grad():
            for gate in self.hidden_weight.chunk(self.num_gates):
                nn.init.orthogonal_(gate)
        return self

    def ordered(self) -> list[Tensor]:
        return [self.input_weight, self.hidden_weight, self.input_bias, self.hidden_bias]

    def start(self, x: Float[Tensor, "steps batch dim"], num_states: int) -> CellState:
        return (x.new_zeros(x.shape[1], self.hidden_weight.shape[1]),) * num_states


class Encoding(NamedTuple):
    """An encoder's output."""

    states: Float[Tensor, "batch tokens hidden"]
    """State after each token, of both directions concatenated; meaningless in the padding."""
    summary: Float[Tensor, "batch hidden"]
    """Final state: at the sentence's last token, and of the backward direction at its first."""


class ForwardEncoder(nn.Module):
    """An RNN that reads from the first token to the last; its last state is the summary.

    Paper: Cho et al. 2014, section 2.2; dropout: Zaremba et al. 2014, section 3.
    """

    def __init__(
        self, dim: int, hidden_dim: int, *, depth: int = 1, cell: CellName = "lstm", dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            CELLS[cell](width, hidden_dim) for width in [dim, *[hidden_dim] * (depth - 1)]
        )
        self.dropout = Dropout(dropout)

    def forward(self, x: Tokens, lengths: Int[Tensor, " batch"]) -> Encoding:
        """As ``BidirectionalEncoder``."""
        states = x.transpose(0, 1)  # tokens b d
        layer: Any
        for layer in self.layers:
            states = self.dropout(layer.read(states))
        return Encoding(states.transpose(0, 1), _take_steps(states, (lengths - 1)[None])[0])


class BidirectionalEncoder(nn.Module):
    """A bidirectional RNN; each layer reads both directions of the one below.

    Args:
        hidden_dim: of both directions together.

    Paper: Bahdanau et al. 2015, section 3.2; dropout: Zaremba et al. 2014, section 3.
    """

    def __init__(
        self, dim: int, hidden_dim: int, *, depth: int = 1, cell: CellName = "lstm", dropout: float = 0.0
    ) -> None:
        super().__init__()
        assert hidden_dim % 2 == 0, f"{hidden_dim} channels are not those of two directions"
        self.layers = nn.ModuleList(
            BidirectionalLayer(CELLS[cell](width, hidden_dim // 2), CELLS[cell](width, hidden_dim // 2))
            for width in [dim, *[hidden_dim] * (depth - 1)]
        )
        self.dropout = Dropout(dropout)

    def forward(self, x: Tokens, lengths: Int[Tensor, " batch"]) -> Encoding:
        """Return the states after each token, and the final ones.

        Args:
            lengths: tokens of each sentence without padding, at least one.
        """
        order = reversal(lengths, x.shape[1]).T  # tokens b
        states = x.transpose(0, 1)  # tokens b d
        for layer in self.layers:
            states = self.dropout(layer(states, order))
        ahead, back = states.chunk(2, dim=-1)
        last = _take_steps(ahead, (lengths - 1)[None])[0]
        return Encoding(states.transpose(0, 1), torch.cat((last, back[0]), dim=-1))


class BidirectionalLayer(nn.Module):
    """A bidirectional recurrent layer; concatenates both directions.

    The backward direction starts at the last token of each sequence: it reads them reversed in place, so that
    padding stays last. Packed sequences would do the same, by kernels that are slower for LSTMs (97 ms
    against 70 in bfloat16, forward and backward, 256 sequences of 16 steps) and that cannot be exported.
    """

    def __init__(self, ahead: Cell, back: Cell) -> None:
        super().__init__()
        self.ahead, self.back = ahead, back

    def forward(
        self, x: Float[Tensor, "steps batch dim"], order: Int[Tensor, "steps batch"]
    ) -> Float[Tensor, "steps batch both"]:
        """Return the states after each step; ``order`` is the sequences' ``reversal``, its own inverse."""
        ahead = self.ahead.read(x)
        back = self.back.read(_take_steps(x, order))
        return torch.cat((ahead, _take_steps(back, order)), dim=-1)


def draw_by_block(weight: Float[Tensor, "rows columns"], num_blocks: int) -> None:
    """Xavier initialisation of a matrix of ``num_blocks`` stacked ones, each by itself.

    Paper: Glorot and Bengio 2010, equation 16.
    """
    with torch.no_grad():
        for block in weight.chunk(num_blocks):
            nn.init.xavier_uniform_(block)


def reversal(lengths: Int[Tensor, " batch"], num_tokens: int) -> Int[Tensor, "batch tokens"]:
    """Return the indices that reverse each sequence and leave its padding at the end.

    Example:
        >>> reversal(torch.tensor([2, 4]), 4).tolist()
        [[1, 0, 2, 3], [3, 2, 1, 0]]
    """
    positions = torch.arange(num_tokens, device=lengths.device)
    return torch.where(positions < lengths[:, None], lengths[:, None] - 1 - positions, positions)


def _take_steps(x: Tensor, positions: Tensor) -> Float[Tensor, "positions batch dim"]:
    """Gather steps of each sequence; exported, it takes any batch."""
    return x.gather(0, positions[..., None].expand(-1, -1, x.shape[-1]))
