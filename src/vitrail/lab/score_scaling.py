"""Claim: dot products of wide vectors saturate the softmax, and the factor 1/sqrt(d) prevents it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import torch
from pydantic import Field
from torch import Tensor

from vitrail.lab import harness as lab
from vitrail.nn.attention import attention_weights

STEADY = 2.0  # largest ratio of gradients that count as equal
VANISHED = 10.0
TOLERANCE = 0.1


class ScoreRow(lab.Row):
    """Softmax over the scores of random queries and keys, whose components have variance one."""

    dim: int
    """Width of queries and keys."""
    scaled: bool
    """Whether the scores are multiplied by 1/sqrt(dim)."""
    seed: int
    """Of queries, keys and what is differentiated."""
    score_std: float
    """Standard deviation of the scores."""
    largest_weight: float
    """Mean over the queries of the largest weight."""
    median_gradient: float
    """Median over the queries of the norm of the scores' gradient, for random upstream gradients."""
    mean_gradient: float
    """Mean of the same; a few queries between two keys keep it up."""


class ScoreScaling(lab.Claim):
    """Differentiate attention weights of random queries and keys of growing width."""

    name = "score_scaling"
    statement = (
        "The gradient of the softmax dies as queries and keys become wider, unless their products are "
        "multiplied by 1/sqrt(d)."
    )
    source = "Vaswani et al. 2017, section 3.2.1"
    published = (
        '"We suspect that for large values of d_k, the dot products grow large in magnitude, pushing the '
        'softmax function into regions where it has extremely small gradients."'
    )
    criterion = (
        "Holds if (1) the standard deviation of the scores follows the width with an exponent within "
        f"{TOLERANCE} of 1/2 without the factor and of 0 with it, and (2) from the least to the greatest "
        f"width the median gradient falls by more than {VANISHED:.0f} times without the factor and changes "
        f"by less than {STEADY:.0f} times with it. Partly if one of both is so."
    )

    dims: tuple[int, ...] = Field(default=(4, 16, 64, 256, 1024), min_length=2)
    """Widths of queries and keys."""
    num_keys: int = Field(default=64, ge=2)
    num_queries: int = Field(default=512, ge=1)
    num_seeds: int = Field(default=3, ge=1)

    def run(self, progress: lab.OnProgress, *, seed: int) -> list[ScoreRow]:
        cases = list(product(self.dims, range(seed, seed + self.num_seeds)))
        rows = []
        for dim, each in lab.tracked(progress, cases, "width {}, seed {}"):
            rows += [self._measure(dim, each, scaled=scaled) for scaled in (False, True)]
        return rows

    def judge(self, rows: Sequence[ScoreRow]) -> lab.Judgement:
        exponents = {scaled: _exponent(rows, scaled) for scaled in (False, True)}
        changes = {scaled: _change(rows, scaled) for scaled in (False, True)}
        scores_agree = abs(exponents[False] - 0.5) <= TOLERANCE and abs(exponents[True]) <= TOLERANCE
        is_steady = 1 / STEADY < changes[True] < STEADY
        gradients_agree = changes[False] < 1 / VANISHED and is_steady
        dims = sorted({row.dim for row in rows})
        return lab.Judgement(
            verdict=lab.decide(
                holds=scores_agree and gradients_agree, partly=scores_agree or gradients_agree
            ),
            measured=f"From width {dims[0]} to {dims[-1]} the median gradient becomes {changes[False]:.2g} "
            f"times itself without the factor and {changes[True]:.2g} with it; the scores' exponents are "
            f"{exponents[False]:z.2f} and {exponents[True]:z.2f}",
        )

    def draw(self, rows: Sequence[ScoreRow]) -> lab.Figure:
        figure, (scores, weights, gradients) = lab.new_panels(3)
        for colour, scaled, name in zip(lab.COLOURS, (False, True), ("q k", "q k / sqrt(d)"), strict=False):
            for axes, field, style, title in (
                (scores, "score_std", "-", name),
                (weights, "largest_weight", "-", name),
                (gradients, "median_gradient", "-", f"{name}, median"),
                (gradients, "mean_gradient", ":", f"{name}, mean"),
            ):
                of_kind = lab.rows_of(rows, ScoreRow, scaled=scaled)
                lab.draw_curve(
                    axes,
                    of_kind,
                    "dim",
                    field,
                    linestyle=style,
                    color=colour,
                    marker="o",
                    markersize=4,
                    label=title,
                )
                axes.set_xscale("log", base=2)
        scores.set_yscale("log")
        gradients.set_yscale("log")
        lab.label(scores, x="width d", y="standard deviation", title="scores", legend=True)
        lab.label(weights, x="width d", y="largest weight", title="weights", legend=True)
        lab.label(gradients, x="width d", y="norm", title="gradient of the scores", legend=True)
        return figure

    def _measure(self, dim: int, seed: int, *, scaled: bool) -> ScoreRow:
        generator = torch.Generator().manual_seed(seed)

        def draw(*shape: int) -> Tensor:
            # Double precision: the softmax is to be seen, not where float32 underflows.
            return torch.randn(1, 1, *shape, generator=generator, dtype=torch.float64)

        query, key = draw(self.num_queries, dim), draw(self.num_keys, dim)
        direction = draw(self.num_queries, self.num_keys)
        added = torch.zeros_like(direction, requires_grad=True)  # its gradient is that of the scores
        scale = dim**-0.5 if scaled else 1.0
        weights = attention_weights(query, key, bias=added, scale=scale)
        (gradient,) = torch.autograd.grad((weights * direction).sum(), added)
        norms = gradient.norm(dim=-1)
        return ScoreRow(
            dim=dim,
            scaled=scaled,
            seed=seed,
            score_std=float((scale * query @ key.mT).std()),
            largest_weight=float(weights.detach().amax(dim=-1).mean()),
            median_gradient=float(norms.median()),
            mean_gradient=float(norms.mean()),
        )


CLAIM = ScoreScaling()


def _exponent(rows: Sequence[ScoreRow], scaled: bool) -> float:
    of_kind = lab.rows_of(rows, ScoreRow, scaled=scaled)
    return lab.fit_exponent(lab.column(of_kind, "dim"), lab.column(of_kind, "score_std"))


def _change(rows: Sequence[ScoreRow], scaled: bool) -> float:
    """Return the ratio of the median gradients at the greatest and the least width."""
    dims = lab.column(rows, "dim")
    least, greatest = (
        lab.mean(rows, "median_gradient", scaled=scaled, dim=dim) for dim in (min(dims), max(dims))
    )
    return greatest / least
