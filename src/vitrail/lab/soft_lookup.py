"""Claim: attention is a soft look-up that nears a hard one as its scale grows, and loses its gradient."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise, product

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from vitrail.lab import harness as lab
from vitrail.nn.attention import attend, attention_weights

HARD = 1e-3  # error of a soft look-up that counts as hard
DEAD = 1e-3  # of the greatest gradient
STEP = 1e-9  # of a query


class LookupRow(lab.SeededRow):
    """Look-up of random values by keys of norm one, with queries near one of the keys."""

    scale: float
    """Factor of the scores, which are the products of query and keys."""
    error: float
    """Median distance to the value of the best key, over the mean norm of a value."""
    gradient: float
    """Median norm of the gradient of the result's sum for the query."""
    hard_change: float
    """Greatest change of the hard look-up by a step of 1e-9 of all components of the query."""


class SoftLookup(lab.SeededClaim):
    """Compare attention of growing scale with the value of the best key, and differentiate it."""

    statement = (
        "Reading the value of the best key, as from a data base, has no gradient; attention is its soft "
        "form, which nears the hard one as the scale grows, and loses its gradient on the way."
    )
    source = "Graves et al. 2014 (Neural Turing Machines), section 3; Xu et al. 2015, section 4"
    published = (
        'A read that interacts with all elements of the memory ("blurry", Graves et al.) is differentiable; '
        "one that addresses a single element is not, and is trained by sampling (hard attention, Xu et al.)."
    )
    criterion = (
        "With the mean over the seeds, holds if (1) the error of the soft look-up falls from each scale to "
        f"the next, to at most {HARD:g}; (2) the gradient at the greatest scale is at most {DEAD:g} of its "
        "greatest; and (3) no small step of a query changes the hard look-up. Partly if (1) is so."
    )

    scales: tuple[float, ...] = Field(default=(1, 2, 4, 8, 16, 32, 64), min_length=2)
    """Factors of the scores; the error of greater ones is rounding."""
    dim: int = Field(default=16, ge=2)
    num_keys: int = Field(default=8, ge=2)
    num_queries: int = Field(default=512, ge=1)
    noise: float = Field(default=0.5, ge=0)
    """Norm of what is added to a key to make a query."""

    def run(self, progress: lab.OnProgress, *, seed: int) -> list[LookupRow]:
        cases = list(product(self.scales, self.seeds(seed)))
        return [self._measure(*case) for case in lab.tracked(progress, cases, "scale {}, seed {}")]

    def judge(self, rows: Sequence[LookupRow]) -> lab.Judgement:
        scales = sorted(set(lab.column(rows, "scale")))
        errors, gradients = (
            [lab.mean(rows, field, scale=scale) for scale in scales] for field in ("error", "gradient")
        )
        nears = all(later < earlier for earlier, later in pairwise(errors)) and errors[-1] <= HARD
        left, moved = gradients[-1] / max(gradients), max(lab.column(rows, "hard_change"))
        return lab.Judgement(
            verdict=lab.decide(holds=nears and left <= DEAD and moved == 0, partly=nears),
            measured=f"From scale {scales[0]:g} to {scales[-1]:g} the error falls from {errors[0]:.2g} to "
            f"{errors[-1]:.1e}; the gradient is greatest at {scales[gradients.index(max(gradients))]:g}, and "
            f"{left:.1e} of that at the end; a small step changes the hard look-up by {moved:g}",
        )

    def draw(self, rows: Sequence[LookupRow]) -> lab.Figure:
        figure, (weights, errors, gradients) = lab.new_panels(3)
        keys, _, queries = self._draw(min(row.seed for row in rows))
        scales = sorted(set(lab.column(rows, "scale")))
        shown = [attention_weights(queries, keys, scale=scale)[0, 0, 0] for scale in scales]
        shown.append(_look_up(queries, keys, torch.eye(self.num_keys)[None, None].to(keys))[0, 0, 0])
        weights.imshow(torch.stack(shown).numpy(), vmin=0, vmax=1, cmap="viridis", aspect="auto")
        weights.grid(visible=False)
        weights.set_yticks(range(len(shown)), [*(f"{scale:g}" for scale in scales), "hard"])
        lab.label(weights, x="key", y="scale", title="weights of one query, 0 (dark) to 1")
        for axes, field, title in (
            (errors, "error", "soft from hard look-up"),
            (gradients, "gradient", "gradient for the query"),
        ):
            lab.draw_curve(axes, rows, "scale", field, color=lab.COLOURS[0], marker="o")
            lab.label(axes, x="scale", y=f"median {field}", title=title, log="xy", base=2)
        return figure

    def _measure(self, scale: float, seed: int) -> LookupRow:
        keys, values, queries = self._draw(seed)
        queries.requires_grad_()
        soft = attend(queries, keys, values, scale=scale)
        (gradient,) = torch.autograd.grad(soft.sum(), queries)
        hard = _look_up(queries, keys, values)
        return LookupRow(
            scale=scale,
            seed=seed,
            error=float((soft.detach() - hard).norm(dim=-1).median() / values.norm(dim=-1).mean()),
            gradient=float(gradient.norm(dim=-1).median()),
            hard_change=float((_look_up(queries + STEP, keys, values) - hard).abs().max()),
        )

    def _draw(self, seed: int) -> tuple[Tensor, Tensor, Tensor]:
        """Draw keys, values and queries, in double precision, where small gradients are not zero."""
        generator = torch.Generator().manual_seed(seed)

        def draw(count: int) -> Tensor:
            return torch.randn(1, 1, count, self.dim, generator=generator, dtype=torch.float64)

        keys, values = F.normalize(draw(self.num_keys), dim=-1), draw(self.num_keys)
        meant = torch.randint(self.num_keys, (self.num_queries,), generator=generator)
        return keys, values, keys[:, :, meant] + self.noise * F.normalize(draw(self.num_queries), dim=-1)


CLAIM = SoftLookup()


def _look_up(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Return the value of the key with the greatest product."""
    return values[0, 0, (queries @ keys.mT).argmax(dim=-1)]
