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
NAMES = {False: "q k", True: "q k / sqrt(d)"}


class ScoreRow(lab.SeededRow):
    """Softmax over the scores of random queries and keys, whose components have variance one."""

    dim: int
    """Width of queries and keys."""
    scaled: bool
    """Whether the scores are multiplied by 1/sqrt(dim)."""
    score_std: float
    """Standard deviation of the scores."""
    largest_weight: float
    """Mean over the queries of the largest weight."""
    median_gradient: float
    """Median over the queries of the norm of the scores' gradient, for random upstream gradients."""
    mean_gradient: float
    """Mean of the same; a few queries between two keys keep it up."""


class ScoreScaling(lab.SeededClaim):
    """Differentiate attention weights of random queries and keys of growing width."""

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

    def run(self, progress: lab.OnProgress, *, seed: int) -> list[ScoreRow]:
        cases = lab.tracked(progress, list(product(self.dims, self.seeds(seed))), "width {}, seed {}")
        return [self._measure(*case, scaled=scaled) for case in cases for scaled in (False, True)]

    def judge(self, rows: Sequence[ScoreRow]) -> lab.Judgement:
        dims = sorted({row.dim for row in rows})
        exponents, changes = {}, {}
        for scaled in NAMES:
            of_kind = lab.rows_of(rows, ScoreRow, scaled=scaled)
            exponents[scaled] = lab.fit_exponent(lab.column(of_kind, "dim"), lab.column(of_kind, "score_std"))
            least, greatest = (lab.mean(of_kind, "median_gradient", dim=dims[end]) for end in (0, -1))
            changes[scaled] = greatest / least
        scores_agree = abs(exponents[False] - 0.5) <= TOLERANCE and abs(exponents[True]) <= TOLERANCE
        is_steady = 1 / STEADY < changes[True] < STEADY
        gradients_agree = changes[False] < 1 / VANISHED and is_steady
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
        for axes, field, style, name, y, title, log in (
            (scores, "score_std", "-", "{}", "standard deviation", "scores", "xy"),
            (weights, "largest_weight", "-", "{}", "largest weight", "weights", "x"),
            (gradients, "median_gradient", "-", "{}, median", "norm", "gradient of the scores", "xy"),
            (gradients, "mean_gradient", ":", "{}, mean", "norm", "gradient of the scores", "xy"),
        ):
            names = {scaled: name.format(text) for scaled, text in NAMES.items()}
            look = {"linestyle": style, "marker": "o", "markersize": 4}
            lab.draw_curves(axes, rows, "dim", field, by="scaled", names=names, **look)
            lab.label(axes, x="width d", y=y, title=title, legend=True, log=log, base=2)
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
