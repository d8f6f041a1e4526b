"""Claim: self-attention without positions is permutation-equivariant."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from pydantic import Field
from torch import nn

from vitrail.lab import harness as lab
from vitrail.nn.attention import Attention
from vitrail.nn.mixers import MixerShape, build_mixer
from vitrail.nn.rotary import SequenceRotary
from vitrail.nn.sequence_positions import LearnedPositions, SequenceRelativeBias
from vitrail.nn.sinusoidal import SinusoidalPositions

LayerName = Literal["attention", "sinusoidal", "learned", "relative", "rotary", "convolution", "recurrent"]
LAYERS: tuple[LayerName, ...] = get_args(LayerName)
ROUNDING = 1e-10  # sums in another order differ by some 1e-16 in double precision
DIFFERENT = 1e-3


class PermutedRow(lab.SeededRow):
    """Equivariance error of a layer with random weights under permutation of its tokens."""

    layer: LayerName
    """Self-attention without positions or with those named, or another layer."""
    error: float
    """Norm of the difference over the norm of the output; 0 is equivariance."""


class Permutation(lab.SeededClaim):
    """Permute tokens before and after layers with random weights."""

    statement = (
        "Self-attention without positions gives permuted tokens the same outputs, permuted; every scheme of "
        "positions, and convolution and recurrence by themselves, end that."
    )
    source = "Vaswani et al. 2017, section 3.5"
    published = (
        '"Since our model contains no recurrence and no convolution, in order for the model to make use of '
        "the order of the sequence, we must inject some information about the relative or absolute position "
        'of the tokens in the sequence."'
    )
    criterion = (
        f"Holds if the error is below {ROUNDING:g} for attention without positions with every seed, and "
        f"above {DIFFERENT:g} for every other layer with every seed. Partly if only the former is so."
    )

    dim: int = Field(default=48, ge=4, multiple_of=4)
    num_heads: int = Field(default=2, ge=1)
    """Heads of attention, and kernels of the convolution."""
    num_tokens: int = Field(default=24, ge=2)
    num_seeds: int = Field(default=8, ge=1)
    """Draws of weights, tokens and permutation."""

    @torch.no_grad()
    def run(self, progress: lab.OnProgress, *, seed: int) -> list[PermutedRow]:
        rows = []
        for (each,) in lab.tracked(progress, [(each,) for each in self.seeds(seed)], "seed {}"):
            with lab.seeded(each):
                rows += [PermutedRow(layer=layer, seed=each, error=self._measure(layer)) for layer in LAYERS]
        return rows

    def judge(self, rows: Sequence[PermutedRow]) -> lab.Judgement:
        plain = max(lab.column(rows, "error", layer="attention"))
        least = min((row for row in rows if row.layer != "attention"), key=lambda row: row.error)
        is_equivariant = plain < ROUNDING
        return lab.Judgement(
            verdict=lab.decide(holds=is_equivariant and least.error > DIFFERENT, partly=is_equivariant),
            measured=f"Without positions the error is at most {plain:.1e}; of all others it is least for "
            f"{least.layer}, {least.error:.2g}",
        )

    def draw(self, rows: Sequence[PermutedRow]) -> lab.Figure:
        figure, (axes,) = lab.new_panels(1)
        for x, layer in enumerate(LAYERS):
            errors = [max(row.error, 1e-18) for row in rows if row.layer == layer]  # zero has no logarithm
            axes.scatter([x] * len(errors), errors, color=lab.COLOURS[int(layer != "attention")], s=18)
        for bound, style, meaning in (
            (DIFFERENT, "--", "above: the order matters"),
            (ROUNDING, ":", "below: rounding alone"),
        ):
            axes.axhline(bound, color="grey", linestyle=style, label=meaning)
        axes.set_xticks(range(len(LAYERS)), LAYERS, rotation=35, ha="right")
        axes.legend(frameon=False, fontsize=8, loc="center right")
        title = "do permuted tokens give the same outputs, permuted?"
        lab.label(axes, x="", y="relative difference", title=title, log="y")
        return figure

    def _measure(self, name: LayerName) -> float:
        layer = self._build(name).double().eval()  # in float64, as sums in another order are no difference
        for parameter in layer.parameters():
            if not parameter.any():  # learned tables that are initialised to zero
                nn.init.normal_(parameter)
        x = torch.randn(3, self.num_tokens, self.dim, dtype=torch.float64)
        order = torch.randperm(self.num_tokens)
        if torch.equal(order, torch.arange(self.num_tokens)):  # not the identity, even of two
            order = order.roll(1)
        permuted, expected = layer(x[:, order]), layer(x)[:, order]
        return float((permuted - expected).norm() / expected.norm())

    def _build(self, name: LayerName) -> nn.Module:
        shape = MixerShape(self.dim, self.num_heads, self.num_tokens)
        if name == "convolution":
            return build_mixer("light_convolution", shape)
        if name == "recurrent":
            return build_mixer("lstm", shape)
        if name == "relative":
            bias: nn.Module = SequenceRelativeBias(self.num_heads, bidirectional=True)
            return Attention(self.dim, self.num_heads, positions=bias)
        if name == "rotary":
            return Attention(self.dim, self.num_heads, positions=SequenceRotary())
        attention = Attention(self.dim, self.num_heads)
        if name == "sinusoidal":
            return nn.Sequential(SinusoidalPositions(self.dim), attention)
        if name == "learned":
            return nn.Sequential(LearnedPositions(self.num_tokens, self.dim), attention)
        return attention


CLAIM = Permutation()
