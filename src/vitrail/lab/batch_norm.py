"""Claim: batch norm in a Transformer depends on padding, and differs between training and evaluation."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from itertools import product
from statistics import fmean
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from pydantic import Field

from vitrail.lab import harness as lab
from vitrail.lab.symbols import (
    END,
    PAD,
    SymbolBatch,
    build_transformer,
    copied_share,
    draw_symbols,
    learn,
    mean_loss,
)
from vitrail.models.transformer import Transformer

Norm = Literal["layer", "batch"]
NORMS: tuple[Norm, ...] = get_args(Norm)
CHANGES = ("padding_change", "mode_change")
DIFFERENT, SAME = 0.05, 1e-4
IGNORED = -100  # label that cross-entropy leaves out


class NormRow(lab.SeededRow):
    """A Transformer trained to copy sentences of different lengths, on new ones, without dropout."""

    norm: Norm
    """Norm of all blocks."""
    padding_change: float
    """Change of the logits in training mode when the sources get as many padding tokens again as the longest
    has tokens: norm of the difference over norm of the logits."""
    training_loss: float
    """Loss in training mode, by the statistics of each batch, in nats per token."""
    evaluation_loss: float
    """Loss of the same sentences in evaluation mode, by the running averages of the training."""
    mode_change: float
    """Difference of both losses over the former."""
    accuracy: float
    """Share of correct symbols of the longest sentences under greedy decoding."""


class BatchNorm(lab.SeededClaim):
    """Train Transformers with either norm to copy sentences, and look at them in both modes."""

    statement = (
        "With batch norm, what a Transformer computes of a sentence depends on the padding of its batch, and "
        "differs between training and evaluation; with layer norm, neither is so."
    )
    source = "Ba, Kiros and Hinton 2016, abstract; Shen et al. 2020 (PowerNorm), abstract"
    published = (
        '"Unlike batch normalization, layer normalization performs exactly the same computation at training '
        'and test times"; "the statistics of NLP data across the batch dimension exhibit large fluctuations '
        'throughout training".'
    )
    criterion = (
        f"Holds if (1) padding changes the logits by at least {DIFFERENT:.0%} with batch norm, on "
        f"average, and by less than {SAME:.2%} with layer norm and every seed, and (2) so does the mode "
        "change the loss. Partly if one of both is so."
    )

    max_length: int = Field(default=12, ge=2)
    """Symbols of the longest sentences; the shortest have two."""
    num_symbols: int = Field(default=10, ge=2)
    width: int = Field(default=32, ge=4, multiple_of=4)
    depth: int = Field(default=2, ge=1)
    """Blocks of the encoder, and of the decoder."""
    num_steps: int = Field(default=600, ge=1)
    batch_size: int = Field(default=32, ge=2)
    learning_rate: float = Field(default=2e-3, gt=0)
    """Of Adam, constant."""
    num_batches: int = Field(default=16, ge=1)
    """Batches of each measurement."""

    def run(self, progress: lab.OnProgress, *, seed: int) -> list[NormRow]:
        cases = list(product(NORMS, self.seeds(seed)))
        return [self._measure(*case) for case in lab.tracked(progress, cases, "{} norm, seed {}")]

    def judge(self, rows: Sequence[NormRow]) -> lab.Judgement:
        means = {name: lab.mean(rows, name, norm="batch") for name in CHANGES}
        most = {name: max(lab.column(rows, name, norm="layer")) for name in CHANGES}
        parts = [means[name] >= DIFFERENT and most[name] < SAME for name in CHANGES]
        copied = {norm: lab.mean(rows, "accuracy", norm=norm) for norm in NORMS}
        return lab.Judgement(
            verdict=lab.decide(holds=all(parts), partly=any(parts)),
            measured=f"With batch norm, padding changes the logits by {means['padding_change']:.1%} on "
            f"average, and the mode the loss by {means['mode_change']:.1%}; with layer norm by at most "
            f"{most['padding_change']:.1g} and {most['mode_change']:.1g}. Copied: {copied['batch']:.1%} and "
            f"{copied['layer']:.1%} of the symbols",
        )

    def draw(self, rows: Sequence[NormRow]) -> lab.Figure:
        figure, (changes, losses) = lab.new_panels(2)
        for colour, norm in zip(lab.COLOURS, NORMS, strict=False):
            for x, name in enumerate(CHANGES):
                # Zero has no logarithm.
                values = [max(value, 1e-9) for value in lab.column(rows, name, norm=norm)]
                changes.scatter([x] * len(values), values, color=colour, s=22, label=None if x else norm)
            trained, evaluated = (
                lab.column(rows, name, norm=norm) for name in ("training_loss", "evaluation_loss")
            )
            losses.scatter(trained, evaluated, color=colour, s=22, label=norm)
        ends = [end(losses.get_xlim() + losses.get_ylim()) for end in (min, max)]
        losses.plot(ends, ends, color="grey", linestyle=":", label="equal")
        changes.set_xticks(range(len(CHANGES)), ["logits by padding", "loss by mode"])
        changes.set_xlim(-0.5, len(CHANGES) - 0.5)
        lab.label(changes, x="", y="relative change", title="what changes a sentence", legend=True, log="y")
        lab.label(
            losses,
            x="loss in training mode, nats",
            y="in evaluation mode, nats",
            title="the same sentences in both modes",
            legend=True,
        )
        return figure

    def _measure(self, norm: Norm, seed: int) -> NormRow:
        generator = torch.Generator().manual_seed(seed)
        with lab.seeded(seed):
            model = build_transformer(self.num_symbols, self.width, self.depth, norm="pre", norm_layer=norm)
        learn(
            model, lambda: self._draw(generator), num_steps=self.num_steps, learning_rate=self.learning_rate
        )
        batches = [self._draw(generator) for _ in range(self.num_batches)]
        with torch.no_grad():
            padding_change = fmean(_change_by_padding(model, batch) for batch in batches)
            modes = copy.deepcopy(model).train(), model.eval()
            trained, evaluated = (fmean(float(mean_loss(mode, each)) for each in batches) for mode in modes)
            longest = draw_symbols(8 * self.num_batches, self.max_length, self.num_symbols, generator)
            accuracy = copied_share(model, longest)
        return NormRow(
            norm=norm,
            seed=seed,
            padding_change=padding_change,
            training_loss=trained,
            evaluation_loss=evaluated,
            mode_change=abs(evaluated - trained) / trained,
            accuracy=accuracy,
        )

    def _draw(self, generator: torch.Generator) -> SymbolBatch:
        """Draw sentences of different lengths, to be copied."""
        full = draw_symbols(self.batch_size, self.max_length, self.num_symbols, generator)
        lengths = torch.randint(2, self.max_length + 1, (self.batch_size, 1), generator=generator)
        positions = torch.arange(self.max_length + 1)
        source = full.source.masked_fill(positions == lengths, END).masked_fill(positions > lengths, PAD)
        return SymbolBatch(
            source=source,
            source_lengths=lengths[:, 0] + 1,
            decoder_input=full.decoder_input.masked_fill(positions > lengths, PAD),
            labels=source.masked_fill(positions > lengths, IGNORED),
        )


CLAIM = BatchNorm()


def _change_by_padding(model: Transformer, batch: SymbolBatch) -> float:
    trained = copy.deepcopy(model).train()  # a pass in training mode changes the running averages
    sources = batch.source, F.pad(batch.source, (0, batch.source.shape[1]), value=PAD)
    one, other = (trained(source, batch.source_lengths, batch.decoder_input) for source in sources)
    is_there = batch.labels != IGNORED
    return float((other - one)[is_there].norm() / one[is_there].norm())
