"""Claim: dot products of wide vectors saturate the softmax, and the factor 1/sqrt(d) prevents it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from statistics import fmean
from typing import TYPE_CHECKING, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from vitrail.core.config import Config
from vitrail.lab.harness import (
    COLOURS,
    Judgement,
    OnProgress,
    Progress,
    Row,
    decide,
    fit_exponent,
    label,
    new_panels,
)
from vitrail.nn.attention import attention_weights

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STEADY = 2.0  # largest ratio of gradients that count as equal
VANISHED = 10.0
TOLERANCE = 0.1


class ScoreRow(Row):
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


class ScoreScaling(Config):
    """Differentiate attention weights of random queries and keys of growing width."""

    name: ClassVar[str] = "score_scaling"
    statement: ClassVar[str] = (
        "The gradient of the softmax dies as queries and keys become wider, unless their products are "
        "multiplied by 1/sqrt(d)."
    )
    source: ClassVar[str] = "Vaswani et al. 2017, section 3.2.1"
    published: ClassVar[str] = (
        '"We suspect that for large values of d_k, the dot products grow large in magnitude, pushing the '
        'softmax function into regions where it has extremely small gradients."'
    )
    criterion: ClassVar[str] = (
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

    def run(self, progress: OnProgress, *, seed: int) -> list[ScoreRow]:
        cases = list(product(self.dims, range(seed, seed + self.num_seeds)))
        rows = []
        for done, (dim, each) in enumerate(cases):
            progress(Progress(done, len(cases), f"width {dim}, seed {each}"))
            rows += [self._measure(dim, each, scaled=scaled) for scaled in (False, True)]
        progress(Progress(len(cases), len(cases), "done"))
        return rows

    def judge(self, rows: Sequence[ScoreRow]) -> Judgement:
        """Fit the exponents of the scores, and compare gradients at the least and the greatest width."""
        exponents = {scaled: _exponent(rows, scaled) for scaled in (False, True)}
        changes = {scaled: _change(rows, scaled) for scaled in (False, True)}
        scores_agree = abs(exponents[False] - 0.5) <= TOLERANCE and abs(exponents[True]) <= TOLERANCE
        is_steady = 1 / STEADY < changes[True] < STEADY
        gradients_agree = changes[False] < 1 / VANISHED and is_steady
        dims = sorted({row.dim for row in rows})
        return Judgement(
            verdict=decide(holds=scores_agree and gradients_agree, partly=scores_agree or gradients_agree),
            measured=f"From width {dims[0]} to {dims[-1]} the median gradient becomes {changes[False]:.2g} "
            f"times itself without the factor and {changes[True]:.2g} with it; the scores' exponents are "
            f"{exponents[False]:z.2f} and {exponents[True]:z.2f}",
        )

    def draw(self, rows: Sequence[ScoreRow]) -> Figure:
        figure, (scores, weights, gradients) = new_panels(3)
        for colour, scaled, name in zip(COLOURS, (False, True), ("q k", "q k / sqrt(d)"), strict=False):
            of_kind = [row for row in rows if row.scaled == scaled]
            _draw(scores, [(row.dim, row.score_std) for row in of_kind], colour, name)
            _draw(weights, [(row.dim, row.largest_weight) for row in of_kind], colour, name)
            _draw(gradients, [(row.dim, row.median_gradient) for row in of_kind], colour, f"{name}, median")
            _draw(gradients, [(row.dim, row.mean_gradient) for row in of_kind], colour, f"{name}, mean", ":")
        scores.set_yscale("log")
        gradients.set_yscale("log")
        label(scores, x="width d", y="standard deviation", title="scores")
        label(weights, x="width d", y="largest weight", title="weights")
        label(gradients, x="width d", y="norm", title="gradient of the scores")
        for axes in (scores, weights, gradients):
            axes.legend(frameon=False, fontsize=8)
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
    of_kind = [row for row in rows if row.scaled == scaled]
    return fit_exponent([row.dim for row in of_kind], [row.score_std for row in of_kind])


def _change(rows: Sequence[ScoreRow], scaled: bool) -> float:
    """Return the ratio of the gradients at the greatest and the least width."""
    by_dim = {
        dim: fmean(row.median_gradient for row in rows if row.scaled == scaled and row.dim == dim)
        for dim in (min(row.dim for row in rows), max(row.dim for row in rows))
    }
    return by_dim[max(by_dim)] / by_dim[min(by_dim)]


def _draw(axes: Axes, points: Sequence[tuple[int, float]], colour: str, name: str, style: str = "-") -> None:
    """Plot the mean over the seeds."""
    dims = sorted({dim for dim, _ in points})
    means = [fmean(value for other, value in points if other == dim) for dim in dims]
    axes.plot(dims, means, style, color=colour, marker="o", markersize=4, label=name)
    axes.set_xscale("log", base=2)
