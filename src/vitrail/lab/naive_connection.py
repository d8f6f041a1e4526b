"""Claim: connecting each output to all former states by weights of their own has three problems."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Literal, get_args

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn

from vitrail.lab import harness as lab
from vitrail.lab.symbols import RecurrentCopying, SymbolBatch, draw_symbols
from vitrail.nn.linear import Linear
from vitrail.nn.recurrent import Encoding
from vitrail.nn.recurrent_decoder import ContextMemory, Mask

Connection = Literal["all states", "attention"]
CONNECTIONS: tuple[Connection, ...] = get_args(Connection)
SQUARE = 1.9  # least exponent of the parameters
GOOD, GAP = 0.9, 0.2  # shares of right symbols


class ConnectedRow(lab.SeededRow):
    """Accuracy of a recurrent encoder-decoder trained to copy sequences, of which long ones are rare."""

    connection: Connection
    """Of outputs and encoder states: a matrix for each pair, or additive attention."""
    length: int
    """Symbols of a test sequence."""
    trained_share: float
    """Share of the training sequences that are at least this long."""
    parameters: int
    """Of the connection and the output's own state, if built for this length."""
    accuracy: float | None
    """Share of symbols predicted right under teacher forcing; none where the model has no weights."""


class NaiveConnection(RecurrentCopying):
    """Train recurrent encoder-decoders to copy, each output connected to all states, or by attention."""

    statement = (
        "Connecting each output to all encoder states by matrices of their own (1) takes parameters that "
        "grow with the square of the length, (2) fixes the greatest length, and (3) learns positions badly "
        "that are rare in training; attention has none of these problems."
    )
    source = "Teaching example, a naive remedy for the bottleneck; compare Bahdanau et al. 2015, section 3.1"
    published = (
        "An output y_t = f(s_t, sum_j W_tj h_j) sees all states; attention replaces the matrices W_tj by "
        "weights that one small network computes from s_t and h_j, at any position."
    )
    criterion = (
        "With the mean over the seeds, holds if (1) the parameters of the naive connection grow with the "
        f"tokens by an exponent of at least {SQUARE}, and those of attention do not change; (2) the naive "
        f"one alone cannot write a sequence longer than it was built for; and (3) it gets {GOOD:.0%} or more "
        f"of the symbols right at the shortest length, and at least {GAP:.0%} less than attention at the "
        "longest trained one, which is the rarest. Partly if (1) and (2) are so."
    )

    max_length: int = Field(default=12, ge=4)
    """Longest training length; lengths from 1 on are drawn by their inverse squares."""
    num_tested: int = Field(default=256, ge=1)
    """Test sequences of each length."""

    def run(self, progress: lab.OnProgress, *, seed: int) -> list[ConnectedRow]:
        trainings = lab.tracked(progress, list(product(CONNECTIONS, self.seeds(seed))), "{}, seed {}")
        return [row for training in trainings for row in self._measure(*training)]

    def judge(self, rows: Sequence[ConnectedRow]) -> lab.Judgement:
        naive, attention = (lab.rows_of(rows, ConnectedRow, connection=each) for each in CONNECTIONS)
        tokens = [length + 1 for length in lab.column(naive, "length")]  # with the end
        grown = lab.fit_exponent(tokens, lab.column(naive, "parameters"))
        is_large = grown >= SQUARE and len(set(lab.column(attention, "parameters"))) == 1
        trained, beyond = (
            [row.length for row in rows if bool(row.trained_share) is is_trained]
            for is_trained in (True, False)
        )
        is_fixed = all((row.accuracy is None) is (row.length in beyond) for row in naive)
        shortest, longest = min(trained), max(trained)
        short, rare = (lab.mean(naive, "accuracy", length=length) for length in (shortest, longest))
        attended, further = (lab.mean(attention, "accuracy", length=each) for each in (longest, max(beyond)))
        return lab.Judgement(
            verdict=lab.decide(
                holds=is_large and is_fixed and short >= GOOD and attended - rare >= GAP,
                partly=is_large and is_fixed,
            ),
            measured=f"Parameters of the naive connection grow with exponent {grown:.2f}, to "
            f"{max(lab.column(naive, 'parameters', length=longest)):,} for {longest} symbols; attention has "
            f"{attention[0].parameters:,} for any length. Of {shortest} symbols the naive one gets "
            f"{short:.0%} right, of {longest}, which are rare, {rare:.0%}, and attention {attended:.0%}; of "
            f"{max(beyond)}, for which the naive one has no weights, attention gets {further:.0%}",
        )

    def draw(self, rows: Sequence[ConnectedRow]) -> lab.Figure:
        figure, (sizes, accuracies) = lab.new_panels(2)
        names = {name: name for name in CONNECTIONS}
        written = [row for row in rows if row.accuracy is not None]
        for axes, shown, field in ((sizes, rows, "parameters"), (accuracies, written, "accuracy")):
            lab.draw_curves(axes, shown, "length", field, by="connection", names=names, marker="o")
        shares = {row.length: row.trained_share for row in rows}
        name = "training sequences so long"
        accuracies.bar(
            list(shares), list(shares.values()), color="lightgrey", width=1.4, zorder=0, label=name
        )
        lab.label(sizes, x="symbols", y="parameters", title="size of the connection", legend=True, log="y")
        lab.label(accuracies, x="symbols", y="share right", title="copying", legend=True)
        return figure

    def _measure(self, connection: Connection, seed: int) -> list[ConnectedRow]:
        is_naive = connection == "all states"
        with lab.seeded(seed):
            model = self.build("attention")
            if is_naive:
                model.decoder.register_module("readout", self._build_naive(self.max_length))
        generator = torch.Generator().manual_seed(seed)
        chances = torch.arange(1.0, self.max_length + 1) ** -2.0
        chances /= chances.sum()
        self.train(model, lambda: 1 + int(torch.multinomial(chances, 1, generator=generator)), generator)
        connected = lab.num_parameters(model.decoder) - lab.num_parameters(model.decoder.stack)
        return [
            ConnectedRow(
                connection=connection,
                seed=seed,
                length=length,
                trained_share=float(chances[length - 1 :].sum()),
                parameters=lab.num_parameters(self._build_naive(length)) if is_naive else connected,
                accuracy=None
                if is_naive and length > self.max_length
                else _share_right(model, draw_symbols(self.num_tested, length, self.num_symbols, generator)),
            )
            for length in (*range(2, self.max_length + 1, 2), self.max_length + 4)
        ]

    def _build_naive(self, length: int) -> nn.Module:
        return _AllStatesReadout(self.hidden_dim, length + 1)  # and the end


CLAIM = NaiveConnection()


class _AllStatesReadout(nn.Module):
    """``tanh(sum_j W_tj h_j + W s_t)`` in place of a ``Readout``, for all steps at once."""

    def __init__(self, hidden_dim: int, num_tokens: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_tokens, num_tokens, hidden_dim, hidden_dim))
        self.of_state = Linear(hidden_dim, hidden_dim, bias=False)
        nn.init.normal_(self.weight, std=(num_tokens * hidden_dim) ** -0.5)
        nn.init.xavier_uniform_(self.of_state.weight)

    def remember(self, encoding: Encoding, may_attend: Mask) -> ContextMemory:
        states = encoding.states[:, None]
        return ContextMemory(states, states, may_attend)

    def forward(
        self, hidden: Float[Tensor, "batch steps hidden"], memory: ContextMemory
    ) -> Float[Tensor, "batch steps hidden"]:
        states = memory.values[:, 0]
        weight = self.weight[: hidden.shape[1], : states.shape[1]]
        return (torch.einsum("tjoh,bjh->bto", weight, states) + self.of_state(hidden)).tanh()


@torch.no_grad()
def _share_right(model: nn.Module, batch: SymbolBatch) -> float:
    """Return the share of tokens predicted right under teacher forcing."""
    logits = model(batch.source, batch.source_lengths, batch.decoder_input)
    return float((logits.argmax(dim=-1) == batch.labels).float().mean())
