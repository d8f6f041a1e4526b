"""Claim: one vector cannot hold a long sequence; attention to all states removes that bottleneck."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import torch
from pydantic import Field, model_validator

from vitrail.lab import harness as lab
from vitrail.lab.symbols import CONTEXTS, Context, RecurrentCopying, copied_share, draw_symbols

GOOD = 0.9  # share of correct symbols
GAP, FALL = 0.3, 0.3
MOST_SYMBOLS = 8000  # tested per sequence length


class CopiedRow(lab.SeededRow):
    """Copying accuracy of a trained model on sequences of one length."""

    context: Context
    """What the decoder reads: the encoder's last states, or all of them by additive attention."""
    length: int
    """Symbols of a sequence."""
    was_trained: bool
    """Whether sequences this long, or longer, were in the training."""
    accuracy: float
    """Share of correct symbols under greedy decoding, position by position."""
    parameters: int
    """Number of learned parameters."""


class Bottleneck(RecurrentCopying):
    """Train recurrent encoder-decoders to copy, with a single vector or attention, and test every length."""

    statement = (
        "A recurrent encoder-decoder that hands over one vector of fixed size copies short sequences better "
        "than long ones; with attention, length costs it little."
    )
    source = (
        "Cho et al. 2014 (On the Properties of Neural Machine Translation), abstract; Bahdanau et al. 2015, "
        "abstract and figure 2"
    )
    published = (
        '"its performance degrades rapidly as the length of the sentence ... increase" (Cho et al.); "we '
        "conjecture that the use of a fixed-length vector is a bottleneck in improving the performance of "
        'this basic encoder-decoder architecture" (Bahdanau et al., whose figure 2 has BLEU falling with '
        "length without attention, and hardly with it)"
    )
    criterion = (
        "Over the trained lengths and all seeds, holds if (1) at the longest one attention copies at least "
        f"{GAP:.0%} of the symbols more than one vector does, and (2) from the shortest to the longest one "
        f"vector loses at least {FALL:.0%} while attention keeps at least {GOOD:.0%}. Partly if (1) alone is "
        "so."
    )

    max_length: int = Field(default=15, ge=1)
    """Longest training length; each batch draws its length from 1 to this."""
    lengths: tuple[int, ...] = Field(default=(2, 5, 10, 15, 20, 30, 100, 300, 1000), min_length=2)
    """Test lengths; those above ``max_length`` are shown but not judged."""
    num_tested: int = Field(default=64, ge=1)
    """Test sequences of each length; fewer of long ones, ``MOST_SYMBOLS`` symbols in all."""

    @model_validator(mode="after")
    def _check_lengths(self) -> Bottleneck:
        if sum(length <= self.max_length for length in set(self.lengths)) < 2:
            raise ValueError("lengths needs two that are not longer than max_length, to see a fall between")
        return self

    def run(self, progress: lab.OnProgress, *, seed: int) -> list[CopiedRow]:
        trainings = lab.tracked(progress, list(product(self.seeds(seed), CONTEXTS)), "{1}, seed {0}")
        return [row for each, context in trainings for row in self._measure(context, each)]

    def judge(self, rows: Sequence[CopiedRow]) -> lab.Judgement:
        trained = lab.column(rows, "length", was_trained=True)
        short, long = min(trained), max(trained)
        (vector_short, vector_long), (attention_short, attention_long) = (
            [lab.mean(rows, "accuracy", context=context, length=length) for length in (short, long)]
            for context in CONTEXTS
        )
        is_ahead = attention_long - vector_long >= GAP
        falls = vector_short - vector_long >= FALL
        return lab.Judgement(
            verdict=lab.decide(holds=is_ahead and falls and attention_long >= GOOD, partly=is_ahead),
            measured=f"From {short} to {long} symbols, one vector copies {vector_short:.0%} and "
            f"{vector_long:.0%} of them, attention {attention_short:.0%} and {attention_long:.0%}",
        )

    def draw(self, rows: Sequence[CopiedRow]) -> lab.Figure:
        figure, (axes,) = lab.new_panels(1)
        for colour, context in zip(lab.COLOURS, CONTEXTS, strict=False):
            of_context = lab.rows_of(rows, CopiedRow, context=context)
            lab.draw_curve(axes, of_context, "length", "accuracy", color=colour, marker="o", label=context)
            lengths, accuracies = (lab.column(of_context, name) for name in ("length", "accuracy"))
            axes.scatter(lengths, accuracies, color=colour, s=8)
        longest = max(lab.column(rows, "length", was_trained=True))
        axes.axvline(longest, color="grey", linestyle=":", label="longest trained")
        axes.set_ylim(0, 1.03)
        lab.label(axes, x="symbols", y="share copied", title="copying", legend=True, log="x")
        return figure

    def _measure(self, context: Context, seed: int) -> list[CopiedRow]:
        with lab.seeded(seed):
            model = self.build(context)
        generator = torch.Generator().manual_seed(seed)

        def draw_length() -> int:
            return int(torch.randint(1, self.max_length + 1, (), generator=generator))

        self.train(model, draw_length, generator)
        rows = []
        for length in self.lengths:
            count = max(1, min(self.num_tested, MOST_SYMBOLS // length))
            rows.append(
                CopiedRow(
                    context=context,
                    seed=seed,
                    length=length,
                    was_trained=length <= self.max_length,
                    accuracy=copied_share(model, draw_symbols(count, length, self.num_symbols, generator)),
                    parameters=lab.num_parameters(model),
                )
            )
        return rows


CLAIM = Bottleneck()
