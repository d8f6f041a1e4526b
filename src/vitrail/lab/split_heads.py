"""Claim: heads project the whole embedding; heads that get a part of it each find less."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Self, get_args

import torch
from pydantic import Field, model_validator
from torch import nn

from vitrail.lab import harness as lab
from vitrail.lab.association import Association
from vitrail.lab.token_functions import Layers, relative_error
from vitrail.nn.attention import Attention

LayerName = Literal["whole", "narrow", "split", "mixed, split"]
LAYERS: tuple[LayerName, ...] = get_args(LayerName)
HOLDS, PARTLY = 10.0, 2.0


class HeadsRow(lab.SeededRow):
    """A layer of multi-head attention, trained to find the partner of the first token."""

    layer: LayerName
    """Heads that project the whole embedding; narrower ones, with no more parameters than split ones; heads
    that see a part of the embedding each; and these behind a learned linear layer."""
    error: float
    """Mean squared error over the mean square of the targets."""
    parameters: int
    """Number of learned parameters."""


class SplitHeads(lab.SeededClaim):
    """Train layers whose heads see the whole embedding, or the part that bears their number."""

    statement = (
        "The heads of attention project the whole embedding; to split the embedding itself into one part "
        "for each head, as multi-head attention is often drawn, finds less."
    )
    source = "Vaswani et al. 2017, section 3.2.2"
    published = (
        '"We found it beneficial to linearly project the queries, keys and values h times with different, '
        'learned linear projections." The literal split was not compared.'
    )
    criterion = (
        f"Holds if the least error of split heads over the seeds is at least {HOLDS:g} times the greatest of "
        f"heads that project the whole embedding, and partly if it is {PARTLY:g} times as large. Narrower "
        "heads, and a linear layer in front of split ones, are shown and not judged."
    )

    num_symbols: int = Field(default=23, ge=3)
    """Size of the alphabet; the embedding is one wider, and divides into the heads."""
    num_heads: int = Field(default=4, ge=2)
    length: int = Field(default=8, ge=2)
    """Symbols of a sequence; half of them hold the partner of the first one."""
    num_steps: int = Field(default=1000, ge=1)
    num_tested: int = Field(default=1000, ge=1)
    """Sequences of the test."""

    @model_validator(mode="after")
    def _check_heads(self) -> Self:
        if (self.num_symbols + 1) % self.num_heads or self.length >= self.num_symbols:
            raise ValueError("num_heads must divide num_symbols + 1, and length be below num_symbols")
        return self

    def run(self, progress: lab.OnProgress, *, seed: int) -> list[HeadsRow]:
        task = Association(
            num_symbols=self.num_symbols, length=self.length, longer=self.length, num_steps=self.num_steps
        )
        cases = [(layer, each) for each in self.seeds(seed) for layer in LAYERS]
        rows = []
        for layer, each in lab.tracked(progress, cases, "{} heads, seed {}"):
            draw = task.write_down(torch.Generator().manual_seed(each)).draw
            with lab.seeded(each):
                model, num_held = build_heads(layer, self.num_symbols + 1, self.num_heads)
            task.train(model, draw)
            error = relative_error(model, draw(self.num_tested, self.length))
            learned = lab.num_parameters(model) - num_held
            rows.append(HeadsRow(layer=layer, seed=each, error=error, parameters=learned))
        return rows

    def judge(self, rows: Sequence[HeadsRow]) -> lab.Judgement:
        ratio = min(lab.column(rows, "error", layer="split")) / max(lab.column(rows, "error", layer="whole"))
        means = ", ".join(f"{layer} {lab.mean(rows, 'error', layer=layer):.2%}" for layer in LAYERS)
        return lab.Judgement(
            verdict=lab.decide(holds=ratio >= HOLDS, partly=ratio >= PARTLY),
            measured=f"The mean square error is {means}; the least of split heads is {ratio:.3g} times the "
            "greatest of whole ones",
        )

    def draw(self, rows: Sequence[HeadsRow]) -> lab.Figure:
        figure, (axes,) = lab.new_panels(1)
        for x, layer in enumerate(LAYERS):
            errors = lab.column(rows, "error", layer=layer)
            axes.scatter([x] * len(errors), errors, color=lab.COLOURS[x], s=22)
        counts = [lab.column(rows, "parameters", layer=layer)[0] for layer in LAYERS]
        ticks = [f"{layer}\n{count:,}" for layer, count in zip(LAYERS, counts, strict=True)]
        axes.set_xticks(range(len(LAYERS)), ticks)
        title, y = "finding the partner of the first token", "mean squared error / mean square"
        lab.label(axes, x="heads, and learned parameters", y=y, title=title, log="y")
        return figure


def build_heads(name: LayerName, dim: int, num_heads: int) -> tuple[Layers, int]:
    """Return multi-head attention with random weights, and how many weights are held at zero."""
    share = dim // num_heads
    # Narrow heads have 4 dim heads width weights, split ones dim (3 share + dim).
    width = max(1, (3 * share + dim) // (4 * num_heads)) if name == "narrow" else share
    attention = Attention(dim, num_heads, qkv_bias=False, head_dim=width, value_dim=width)
    num_held = keep_parts(attention) if "split" in name else 0
    before = [nn.Linear(dim, dim)] if name == "mixed, split" else []
    return Layers(*before, attention), num_held


def keep_parts(attention: Attention) -> int:
    """Let each head read its own part of the channels; return how many weights are held at zero."""
    part = torch.arange(attention.projection.out_features) // attention.head_dim
    is_own = (part[:, None] == part).repeat(3, 1)  # of queries, keys and values, by channel
    weight = attention.qkv.weight
    with torch.no_grad():
        weight.mul_(is_own * attention.num_heads**0.5)  # as drawn for inputs of a part's width
    weight.register_hook(lambda gradient: gradient * is_own)
    return int((~is_own).sum())


CLAIM = SplitHeads()
