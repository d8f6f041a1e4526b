"""Multinomial logistic regression on the features of a frozen model, its strength chosen on validation."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

MAX_ITERATIONS = 1000  # Radford et al. 2021, appendix A.3
GRADIENT_TOLERANCE = 1e-6  # of the mean loss; scikit-learn's default is 1e-4
FIRST_STRENGTHS = tuple(range(-6, 7, 2))  # log10 of C: Radford et al. 2021, appendix A.3
STEPS_PER_DECADE = 8  # of the last interval that is searched, likewise


class Probe(NamedTuple):
    """A linear classifier of features."""

    weight: Float[Tensor, "classes dim"]
    """One row for each class."""
    bias: Float[Tensor, " classes"]
    """One number for each class."""


class ChosenProbe(NamedTuple):
    """What the search found, fitted again on all images that may be learned from."""

    probe: Probe
    """Fitted on train and validation together."""
    strength: float
    """The inverse strength C that was right most often on validation."""
    tried: dict[float, float]
    """Validation accuracy of each C that was tried, ascending."""


def probe_logits(probe: Probe, features: Float[Tensor, "n dim"]) -> Float[Tensor, "n classes"]:
    """Return the logits of features, in float64."""
    return features.double() @ probe.weight.T + probe.bias


def fit_probe(
    features: Float[Tensor, "n dim"],
    labels: Int[Tensor, " n"],
    *,
    num_classes: int,
    inverse_strength: float = 1.0,
    start: Probe | None = None,
) -> Probe:
    """Minimise ``C sum_i CE(W x_i + b, y_i) + |W|^2 / 2`` with L-BFGS in float64, as scikit-learn states it.

    The bias is not regularised, so that features may be centred first, which makes the search short. The
    problem is convex: the start changes the time alone.

    Args:
        features: of images, as they are.
        labels: their classes.
        num_classes: number of classes.
        inverse_strength: C; the smaller, the smaller the weights.
        start: where to begin; zeros otherwise.
    """
    centre = features.double().mean(dim=0)
    x, y = features.double() - centre, labels.to(features.device)
    # The weights are searched in units in which a strong penalty is as curved as the loss.
    unit = min(1.0, math.sqrt(inverse_strength * len(y)))
    weight = x.new_zeros(num_classes, x.shape[1]) if start is None else start.weight / unit
    bias = x.new_zeros(num_classes) if start is None else start.bias + start.weight @ centre
    optimiser = torch.optim.LBFGS(
        [weight.requires_grad_(), bias.requires_grad_()],
        max_iter=MAX_ITERATIONS,
        # With a tiny C the answers hang on tiny weights, and on biases that are as small.
        tolerance_grad=GRADIENT_TOLERANCE * unit,
        tolerance_change=0.0,
        history_size=10,
        line_search_fn="strong_wolfe",
    )

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = F.cross_entropy(unit * (x @ weight.T) + bias, y)
        loss = loss + unit**2 * weight.square().sum() / (2 * inverse_strength * len(y))
        loss.backward()
        return loss

    optimiser.step(closure)
    weight = unit * weight.detach()
    return Probe(weight, bias.detach() - weight @ centre)


def choose_probe(
    train: tuple[Float[Tensor, "n dim"], Int[Tensor, " n"]],
    validation: tuple[Float[Tensor, "held dim"], Int[Tensor, " held"]],
    *,
    num_classes: int,
    on_fit: Callable[[int], None] | None = None,
) -> ChosenProbe:
    """Search the strength that is right most often on validation, and fit with it on both parts together.

    Seven values of C from 1e-6 to 1e6 come first; then the interval around the best is halved until its steps
    are an eighth of a decade. Of values that are right equally often, the one is taken under which the labels
    are most probable: on few validation images ties are common, and a tiny C ends in uniform probabilities.

    Paper: Radford et al. 2021, appendix A.3.
    Departs from the paper: it states its strengths as lambda; here they are scikit-learn's C.

    Args:
        train: features and labels that are learned from.
        validation: those that the strength is chosen on.
        num_classes: number of classes.
        on_fit: told how many fits are done.
    """
    scores: dict[float, _Score] = {}
    last: Probe | None = None

    def score(exponent: float) -> None:
        nonlocal last
        if exponent not in scores:
            last = fit_probe(*train, num_classes=num_classes, inverse_strength=10.0**exponent, start=last)
            scores[exponent] = _score(probe_logits(last, validation[0]), validation[1])
            if on_fit is not None:
                on_fit(len(scores))

    for first in FIRST_STRENGTHS:
        score(float(first))
    step = 1.0
    while step >= 1 / STEPS_PER_DECADE:
        best = _best(scores)
        for exponent in (best - step, best + step):
            if FIRST_STRENGTHS[0] <= exponent <= FIRST_STRENGTHS[-1]:
                score(exponent)
        step /= 2
    best = _best(scores)
    both = torch.cat([train[0], validation[0]]), torch.cat([train[1], validation[1]])
    probe = fit_probe(*both, num_classes=num_classes, inverse_strength=10**best)
    return ChosenProbe(
        probe, 10**best, {10**exponent: scores[exponent].accuracy for exponent in sorted(scores)}
    )


class _Score(NamedTuple):
    """How good a strength is; of two, the greater tuple is the better one."""

    accuracy: float
    """Share of validation images."""
    log_likelihood: float
    """Mean of their labels."""


def _score(logits: Float[Tensor, "held classes"], labels: Int[Tensor, " held"]) -> _Score:
    labels = labels.to(logits.device)
    right = logits.argmax(dim=-1) == labels
    return _Score(float(right.double().mean()), -float(F.cross_entropy(logits, labels)))


def _best(scores: Mapping[float, _Score]) -> float:
    return max(scores, key=lambda exponent: scores[exponent])
