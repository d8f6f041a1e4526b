"""The recurrent decoder that looks at an image before each word: soft attention with a gate."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.nn.attention import Places
from vitrail.nn.context import ContextAttention, ContextMemory
from vitrail.nn.linear import Linear
from vitrail.nn.recurrent import CellState, draw_by_block
from vitrail.nn.recurrent_decoder import RecurrentStack
from vitrail.nn.recurrent_state import AttentionMemory, RecurrentState
from vitrail.nn.scores import AdditiveScore


class Written(NamedTuple):
    """What a decoder made of some steps."""

    vectors: Float[Tensor, "batch captions steps dim"]
    """What the next word is told from."""
    weights: Float[Tensor, "batch captions steps cells"]
    """Share of each cell in what was read before each step, before the gate."""


class GlimpseDecoder(nn.Module):
    """Look at the cells of an image with the state so far, then read what was seen beside the last word.

    ``z = beta sum_i alpha_i a_i`` with ``alpha = softmax(v tanh(W h + U a))`` and ``beta = sigmoid(w h)``;
    the recurrent layers read the word's embedding and ``z``; a word is told from ``E y + L_h h' + L_z z``.
    Captions of an image share its keys, which are made once.

    Args:
        stack: reads the embedded words.
        dim: width of an embedded word, and of what a word is told from.
        hidden_dim: width of the states and of the cells.
        attention_dim: width of the additive score's hidden layer.

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

    def start(self, cells: Float[Tensor, "batch cells hidden"]) -> RecurrentState[AttentionMemory]:
        """Return the state before the first step, one row for each image."""
        everywhere = torch.ones(cells.shape[0], 1, 1, cells.shape[1], dtype=torch.bool, device=cells.device)
        memory = AttentionMemory(self.attention.remember(cells), everywhere)
        return RecurrentState(self.stack.begin(cells.mean(dim=1)), None, memory)

    def forward(
        self,
        x: Float[Tensor, "batch captions steps dim"],
        state: RecurrentState[AttentionMemory],
        *,
        grid: tuple[int, int] | None = None,
    ) -> Written:
        """Return what all steps from the first on made, of one row of the state for each caption.

        Args:
            x: embedded words.
            state: before the first step; it has a row for each caption.
            grid: rows and columns of the cells; only recorded maps use it.
        """
        images, captions, steps = x.shape[:3]
        layers, memory = state.layers, state.memory.context
        entered = self.stack.enter(x.flatten(0, 1).transpose(0, 1))  # steps rows gates
        hidden, glimpses, weights = [], [], []
        for gates in entered.unbind():
            layers, glimpse, shares = self._advance(gates, layers, memory)
            hidden.append(layers[-1][0])
            glimpses.append(glimpse)
            weights.append(shares)
        seen = torch.stack(weights, dim=2)  # batch captions steps cells
        self._show(seen.flatten(0, 1), memory, captions, grid)
        told = self.of_state(torch.stack(hidden, dim=1)) + self.of_glimpse(torch.stack(glimpses, dim=1))
        return Written(x + told.reshape(images, captions, steps, -1), seen)

    def step(
        self, x: Float[Tensor, "rows dim"], state: RecurrentState[AttentionMemory]
    ) -> tuple[Float[Tensor, "rows dim"], RecurrentState[AttentionMemory]]:
        """Return what each row's next word is told from after one more word, and the state after it."""
        layers, glimpse, shares = self._advance(self.stack.enter(x), state.layers, state.memory.context)
        self._show(shares.flatten(0, 1)[:, None], state.memory.context, shares.shape[1], None)
        vectors = x + self.of_state(layers[-1][0]) + self.of_glimpse(glimpse)
        return vectors, dataclasses.replace(state, layers=layers)

    def _advance(
        self, gates: Tensor, layers: tuple[CellState, ...], memory: ContextMemory
    ) -> tuple[tuple[CellState, ...], Tensor, Tensor]:
        """Take one step; return the states, what was seen behind the gate, and the weights by image."""
        hidden = layers[-1][0]
        asking = hidden.unflatten(0, (memory.keys.shape[0], -1))  # batch captions hidden
        score = self.attention.score
        assert isinstance(score, AdditiveScore), "the weights are taken from its scores"
        scores = score(self.attention.query_projection(asking)[:, None], memory.keys)
        shares = scores.float().softmax(dim=-1).to(memory.values.dtype)  # batch 1 captions cells
        glimpse = (shares @ memory.values)[:, 0].flatten(0, 1)
        glimpse = glimpse * self.gate(hidden).sigmoid()
        layers = self.stack.advance(gates + self.feed(glimpse), layers)
        return layers, glimpse, shares[:, 0]

    def _show(self, weights: Tensor, memory: ContextMemory, count: int, grid: tuple[int, int] | None) -> None:
        """Show the weights of rows (rows queries cells) to what records them."""
        if self.attention.tap is None:
            return
        places = None if grid is None else Places(queries=None, keys=grid)
        self.attention.tap.take_weights(weights[:, None], kind="cross", places=places)
        values = memory.values.repeat_interleave(count, dim=0)
        self.attention.tap.take_result(values, weights[:, None] @ values)
