"""Claim: attention gives the gradient a straight path to every encoder state, however far away."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any, get_args

import torch
from pydantic import Field, PositiveInt
from torch import Tensor

from vitrail.lab import harness as lab
from vitrail.lab.symbols import CONTEXTS, Context, build_recurrent, draw_symbols
from vitrail.nn.recurrent import CellName

CELLS: tuple[CellName, ...] = get_args(CellName)
VANISHED = 0.01  # of the gradient at the least distance
KEPT = 0.5  # of the gradient at half the distance


class GradientRow(lab.SeededRow):
    """Gradient of the first output with respect to a source token's embedding, with random weights."""

    cell: CellName
    """Of encoder and decoder, one layer each; the encoder reads in one direction."""
    context: Context
    """What the decoder reads: the encoder's last state, or all of them by additive attention."""
    distance: int
    """Recurrent steps from the token to the output."""
    gradient: float
    """Median norm over the sequences."""


class GradientPaths(lab.SeededClaim):
    """Differentiate the first output of recurrent encoder-decoders with respect to every source token."""

    statement = (
        "Through recurrent steps alone the gradient vanishes with the distance; attention gives it a "
        "straight path to every encoder state, so that from some distance on it falls no further."
    )
    source = "Bengio et al. 1994; Bahdanau et al. 2015, section 3; Vaswani et al. 2017, section 4"
    published = (
        '"Learning long-term dependencies with gradient descent is difficult" (title of Bengio et al.); "One '
        "key factor affecting the ability to learn such dependencies is the length of the paths forward and "
        'backward signals have to traverse in the network" (Vaswani et al.)'
    )
    criterion = (
        "With the mean over the seeds, before any training, holds if for every cell (1) without attention "
        f"the gradient at the greatest distance is at most {VANISHED:.0%} of that at the least, and (2) with "
        f"attention it is at least {KEPT:.0%} of that at half the distance. Partly if (2) alone is so."
    )

    distances: tuple[PositiveInt, ...] = Field(
        default=(1, 2, 5, 10, 20, 50, 100, 200, 300, 400, 500, 600, 700, 800, 900, 1000), min_length=3
    )
    """Measured distances; the sequences are as long as the greatest."""
    num_sequences: int = Field(default=32, ge=1)
    num_symbols: int = Field(default=16, ge=2)
    """Size of the alphabet."""
    embedding_dim: int = Field(default=32, ge=1)
    hidden_dim: int = Field(default=64, ge=2, multiple_of=2)

    def run(self, progress: lab.OnProgress, *, seed: int) -> list[GradientRow]:
        cases = list(product(CELLS, CONTEXTS, self.seeds(seed)))
        rows: list[GradientRow] = []
        for cell, context, each in lab.tracked(progress, cases, "{}, {}, seed {}"):
            from_nearest = self._gradients(cell, context, each)
            rows += [
                GradientRow(
                    cell=cell, context=context, seed=each, distance=steps, gradient=from_nearest[steps - 1]
                )
                for steps in self.distances
            ]
        return rows

    def judge(self, rows: Sequence[GradientRow]) -> lab.Judgement:
        distances = sorted(set(lab.column(rows, "distance")))
        least, greatest = distances[0], distances[-1]
        middle = min(distances, key=lambda distance: abs(distance - greatest / 2))

        def shares(context: Context, start: int) -> list[float]:
            """Return the gradient at the greatest distance over that at another, by cell."""
            return [
                lab.mean(rows, "gradient", cell=cell, context=context, distance=greatest)
                / lab.mean(rows, "gradient", cell=cell, context=context, distance=start)
                for cell in CELLS
            ]

        lost, kept = shares("one vector", least), shares("attention", middle)
        without, beside = (
            ", ".join(f"{cell} {value:.2g}" for cell, value in zip(CELLS, values, strict=True))
            for values in (lost, kept)
        )
        return lab.Judgement(
            verdict=lab.decide(holds=max(lost) <= VANISHED and min(kept) >= KEPT, partly=min(kept) >= KEPT),
            measured=f"At distance {greatest} the gradient is, without attention, so many times that at "
            f"{least}: {without}; with attention, so many times that at {middle}: {beside}",
        )

    def draw(self, rows: Sequence[GradientRow]) -> lab.Figure:
        figure, panels = lab.new_panels(len(CELLS))
        for axes, cell in zip(panels, CELLS, strict=True):
            shown, names = lab.rows_of(rows, GradientRow, cell=cell), {each: each for each in CONTEXTS}
            style: dict[str, Any] = {"by": "context", "names": names, "marker": "o", "markersize": 4}
            lab.draw_curves(axes, shown, "distance", "gradient", **style)
            lab.label(
                axes, x="steps to the output", y="gradient of a token", title=cell, legend=True, log="y"
            )
        return figure

    def _gradients(self, cell: CellName, context: Context, seed: int) -> list[float]:
        """Return the median gradient of each token, the last one first."""
        length = max(self.distances)
        with lab.seeded(seed):
            sizes = (self.num_symbols, self.embedding_dim, self.hidden_dim)
            # Double precision, so that small gradients are not rounded to zero.
            model = build_recurrent(context, *sizes, cell=cell, bidirectional=False).double()
            generator = torch.Generator().manual_seed(seed)
            batch = draw_symbols(self.num_sequences, length - 1, self.num_symbols, generator)  # and the end
            embedded: list[Tensor] = []
            assert model.source_embedding is not None
            model.source_embedding.register_forward_hook(lambda _, inputs, output: embedded.append(output))
            first = model(batch.source, batch.source_lengths, batch.decoder_input[:, :1])
            (gradient,) = torch.autograd.grad((first * torch.randn_like(first)).sum(), embedded)
        medians: list[float] = gradient.norm(dim=-1).median(dim=0).values.flip(0).tolist()
        return medians


CLAIM = GradientPaths()
