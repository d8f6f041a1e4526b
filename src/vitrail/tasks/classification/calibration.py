"""Calibration of a classifier: scores, reliability diagram, temperature scaling."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vitrail.core.config import Config
from vitrail.report.plots import COLOURS, INK, SOFT, inline_svg, new_figure, opacity_of_count
from vitrail.tasks.classification.scores import (
    CALIBRATION_BINS,
    CalibrationBin,
    calibration_bins,
    expected_calibration_error,
)

TEMPERATURE_RANGE = (0.01, 100.0)  # outside it, the model is always right or uninformative
BISECTIONS = 60  # down to the resolution of float64


class CalibrationScores(Config):
    """How well the probabilities of a classifier match its accuracy."""

    accuracy: float
    """Top-1 accuracy; independent of the temperature."""
    confidence: float
    """Mean probability of the predicted class."""
    calibration_error: float
    """Expected calibration error: mean gap between confidence and accuracy over the bins."""
    max_calibration_error: float
    """The gap of the worst bin."""
    brier: float
    """Mean squared distance of the probabilities from the one-hot label: 0 is best, 2 worst."""
    nll: float
    """Mean log loss of the true class, in nats."""
    bins: tuple[CalibrationBin, ...]
    """The reliability diagram."""


def calibration_scores(
    logits: Float[Tensor, "n classes"],
    labels: Int[Tensor, " n"],
    *,
    temperature: float = 1.0,
    num_bins: int = CALIBRATION_BINS,
) -> CalibrationScores:
    """Compute calibration scores of ``softmax(logits / T)``, in float64.

    Paper: Guo et al. 2017, sections 2 and 4.

    Args:
        logits: unnormalised, or log probabilities.
        temperature: above 1 lowers confidence, below 1 raises it.
        num_bins: equally wide intervals of confidence.

    >>> scores = calibration_scores(torch.tensor([[2.0, 0.0], [0.0, 2.0]]), torch.tensor([0, 0]))
    >>> round(scores.confidence, 3), scores.accuracy, round(scores.calibration_error, 3)
    (0.881, 0.5, 0.381)
    """
    log_probabilities = (logits.double() / temperature).log_softmax(dim=-1)
    probabilities = log_probabilities.exp()
    bins = calibration_bins(probabilities, labels, num_bins)
    return CalibrationScores(
        accuracy=float((logits.argmax(dim=-1) == labels).double().mean()),
        confidence=float(probabilities.max(dim=-1).values.mean()),
        calibration_error=expected_calibration_error(bins),
        max_calibration_error=max(abs(entry.confidence - entry.accuracy) for entry in bins if entry.count),
        brier=brier_score(probabilities, labels),
        nll=float(-log_probabilities.gather(1, labels[:, None]).mean()),
        bins=bins,
    )


def brier_score(probabilities: Float[Tensor, "n classes"], labels: Int[Tensor, " n"]) -> float:
    """Average the squared distance between the probabilities and the one-hot label.

    Paper: Brier 1950, equation 2, which sums over the classes: a certain error costs 2.
    """
    chosen = probabilities.double().gather(1, labels[:, None])[:, 0]
    return float((probabilities.double().square().sum(dim=-1) - 2 * chosen + 1).mean())


def fit_temperature(logits: Float[Tensor, "n classes"], labels: Int[Tensor, " n"]) -> float:
    """Return the temperature that minimises the log loss, within ``TEMPERATURE_RANGE``.

    The negative log likelihood of ``softmax(b z)`` is convex in ``b = 1 / T``; bisection finds the zero of
    its slope, the mean of ``E_p[z] - z_label``. An end of the range is returned where there is none: all
    images are right, or the logits are uninformative.

    Paper: Guo et al. 2017, section 4.2, temperature scaling.

    Args:
        logits: of held-out images.
    """
    values = logits.double() - logits.double().max(dim=-1, keepdim=True).values
    target = values.gather(1, labels[:, None]).mean()

    def slope(inverse: Tensor) -> Tensor:
        return ((values * inverse).softmax(dim=-1) * values).sum(dim=-1).mean() - target

    low, high = (torch.tensor(1 / end, dtype=torch.float64) for end in reversed(TEMPERATURE_RANGE))
    for _ in range(BISECTIONS):
        middle = (low * high).sqrt()
        if slope(middle) < 0:
            low = middle
        else:
            high = middle
    return float(1 / (low * high).sqrt())


def reliability_plot(name: str, bins: Sequence[CalibrationBin]) -> str:
    """Plot accuracy against confidence (reliability diagram)."""
    figure, axes = new_figure("confidence", "accuracy")
    filled = [entry for entry in bins if entry.count]
    most = max((entry.count for entry in filled), default=1)
    axes.plot([0, 1], [0, 1], color=SOFT, linewidth=1, linestyle="--", label="calibrated")
    for entry in filled:
        axes.bar(
            (entry.lower + entry.upper) / 2,
            entry.accuracy,
            width=(entry.upper - entry.lower) * 0.92,
            color=COLOURS[0],
            alpha=opacity_of_count(entry.count, most),
        )
    axes.plot(
        [entry.confidence for entry in filled],
        [entry.accuracy for entry in filled],
        color=COLOURS[1],
        marker="o",
        markersize=4,
        linewidth=0,
        label="mean of the bin",
    )
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1.02)
    axes.legend(frameon=False, labelcolor=INK, loc="upper left")
    return inline_svg(figure, name)
