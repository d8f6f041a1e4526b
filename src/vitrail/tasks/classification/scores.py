"""Scores of a classifier, computed from its class probabilities."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vitrail.core.config import Config
from vitrail.report.plots import COLOURS, INK, SOFT, inline_svg, new_figure, opacity_of_count
from vitrail.report.tiles import Inks

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CALIBRATION_BINS = 15  # Guo et al. 2017, On Calibration of Modern Neural Networks, section 4
NORMAL_QUANTILE_95 = 1.959963984540054  # two-sided 95 % of the standard normal distribution


class ClassScores(Config):
    """Scores of one class."""

    precision: float
    """0 if the class was never predicted."""
    recall: float
    """0 if there is no such image."""
    f1: float
    """Harmonic mean of precision and recall."""
    support: int
    """Number of images of this class."""


class CalibrationBin(Config):
    """One bin of the reliability diagram: the images whose confidence falls into an interval."""

    lower: float
    """Exclusive lower end of the interval."""
    upper: float
    """Inclusive upper end of the interval."""
    count: int
    """Number of images in it."""
    confidence: float
    """Mean confidence; 0 for an empty bin."""
    accuracy: float
    """Accuracy; 0 for an empty bin."""


class ClassificationTables(Config):
    """The tables behind the headline scores of a classifier."""

    per_class: tuple[ClassScores, ...]
    """One row per class, in class order."""
    confusion: tuple[tuple[int, ...], ...]
    """Number of images by true class (row) and predicted class (column)."""
    calibration: tuple[CalibrationBin, ...]
    """The reliability diagram: equally wide intervals of confidence."""
    indices: tuple[int, ...]
    """Index of each image in its source; the three fields below follow this order."""
    labels: tuple[int, ...]
    """True class of each image."""
    predicted: tuple[int, ...]
    """Most probable class of each image."""
    confidence: tuple[float, ...]
    """Probability of that class."""


def top_k_accuracy(probabilities: Float[Tensor, "n classes"], labels: Int[Tensor, " n"], k: int) -> float:
    """Count the share of images whose true class is among the k most probable ones."""
    best = probabilities.topk(k, dim=-1).indices
    return float((best == labels[:, None]).any(dim=-1).double().mean())


def confusion_matrix(
    predicted: Int[Tensor, " n"], labels: Int[Tensor, " n"], num_classes: int
) -> Int[Tensor, "classes classes"]:
    """Count images by true class (row) and predicted class (column)."""
    counts = torch.bincount(labels * num_classes + predicted, minlength=num_classes**2)
    return counts.reshape(num_classes, num_classes)


def per_class_scores(confusion: Int[Tensor, "classes classes"]) -> tuple[ClassScores, ...]:
    """Return precision, recall and F1 of every class; a division by zero counts as 0."""
    counts = confusion.double()
    correct, support, given = counts.diagonal(), counts.sum(dim=1), counts.sum(dim=0)
    columns = (
        correct / given.clamp(min=1),
        correct / support.clamp(min=1),
        2 * correct / (given + support).clamp(min=1),
        support,
    )
    return tuple(
        ClassScores(precision=precision, recall=recall, f1=f1, support=int(count))
        for precision, recall, f1, count in zip(*(column.tolist() for column in columns), strict=True)
    )


def mean_class_accuracy(predicted: Int[Tensor, " n"], labels: Int[Tensor, " n"]) -> float:
    """Return the mean per-class accuracy over the classes that occur."""
    support = labels.bincount()
    correct = labels[predicted == labels].bincount(minlength=len(support))
    is_there = support > 0
    return float((correct[is_there].double() / support[is_there]).mean())


def calibration_bins(
    probabilities: Float[Tensor, "n classes"], labels: Int[Tensor, " n"], num_bins: int = CALIBRATION_BINS
) -> tuple[CalibrationBin, ...]:
    """Bin confidence and accuracy in equally wide intervals of confidence.

    Paper: Guo et al. 2017, equations 1 and 2.
    """
    confidence, predicted = probabilities.double().max(dim=-1)
    correct = (predicted == labels).double()
    # Intervals are (lower, upper]; a confidence of exactly 0 cannot occur.
    bin_index = (confidence * num_bins).ceil().long().clamp(1, num_bins) - 1
    counts = torch.bincount(bin_index, minlength=num_bins)
    divisor = counts.clamp(min=1)
    mean_confidence = torch.bincount(bin_index, weights=confidence, minlength=num_bins) / divisor
    mean_accuracy = torch.bincount(bin_index, weights=correct, minlength=num_bins) / divisor
    return tuple(
        CalibrationBin(
            lower=i / num_bins,
            upper=(i + 1) / num_bins,
            count=int(counts[i]),
            confidence=float(mean_confidence[i]),
            accuracy=float(mean_accuracy[i]),
        )
        for i in range(num_bins)
    )


def expected_calibration_error(bins: tuple[CalibrationBin, ...]) -> float:
    """Average the gap between confidence and accuracy over all images (ECE).

    Paper: Guo et al. 2017, equation 3.
    """
    total = sum(entry.count for entry in bins)
    return sum(entry.count * abs(entry.confidence - entry.accuracy) for entry in bins) / max(total, 1)


def negative_log_likelihood(probabilities: Float[Tensor, "n classes"], labels: Int[Tensor, " n"]) -> float:
    """Average the log loss of the true class, in nats."""
    chosen = probabilities.double().gather(1, labels[:, None])
    # Probabilities that underflowed are clamped to the smallest positive float32.
    return float(-chosen.clamp(min=torch.finfo(torch.float32).tiny).log().mean())


def wilson_interval(correct: int, count: int) -> tuple[float, float]:
    """Return the 95 % Wilson score interval (1927) of a proportion, sound for few images and extreme values.

    Args:
        count: number of trials, at least 1.
    """
    share, squared = correct / count, NORMAL_QUANTILE_95**2
    centre = (share + squared / (2 * count)) / (1 + squared / count)
    spread = math.sqrt(share * (1 - share) / count + squared / (4 * count**2))
    half = NORMAL_QUANTILE_95 * spread / (1 + squared / count)
    return max(0.0, centre - half), min(1.0, centre + half)


def headline_scores(
    tables: ClassificationTables, probabilities: Float[Tensor, "n classes"], labels: Int[Tensor, " n"]
) -> dict[str, float]:
    """Return every headline score, the accuracy with its 95 % interval."""
    correct = sum(row[label] for label, row in enumerate(tables.confusion))
    lower, upper = wilson_interval(correct, len(labels))
    present = [entry for entry in tables.per_class if entry.support]
    scores = {
        "accuracy": correct / len(labels),
        "accuracy_lower": lower,
        "accuracy_upper": upper,
        "balanced_accuracy": sum(entry.recall for entry in present) / len(present),
        "macro_f1": sum(entry.f1 for entry in present) / len(present),
        "nll": negative_log_likelihood(probabilities, labels),
        "calibration_error": expected_calibration_error(tables.calibration),
    }
    if probabilities.shape[-1] > 5:
        scores["top5_accuracy"] = top_k_accuracy(probabilities, labels, 5)
    return scores


def classification_tables(
    probabilities: Float[Tensor, "n classes"], labels: Int[Tensor, " n"], indices: Int[Tensor, " n"]
) -> ClassificationTables:
    """Collect the tables that stand behind the headline scores."""
    confidence, predicted = probabilities.max(dim=-1)
    confusion = confusion_matrix(predicted, labels, probabilities.shape[-1])
    return ClassificationTables(
        per_class=per_class_scores(confusion),
        confusion=tuple(map(tuple, confusion.tolist())),
        calibration=calibration_bins(probabilities, labels),
        indices=tuple(indices.tolist()),
        labels=tuple(labels.tolist()),
        predicted=tuple(predicted.tolist()),
        confidence=tuple(round(value, 6) for value in confidence.tolist()),
    )


def most_confident_errors(tables: ClassificationTables, count: int) -> list[int]:
    """Return the rows of misclassified images, most confident first."""
    pairs = zip(tables.labels, tables.predicted, strict=True)
    wrong = [row for row, (true, given) in enumerate(pairs) if true != given]
    return sorted(wrong, key=lambda row: -tables.confidence[row])[:count]


def examples_of_each_class(tables: ClassificationTables, count: int) -> dict[int, list[int]]:
    """Return for each class the rows of some correctly classified images of median confidence.

    The median is typical; the most confident images would flatter the model.
    """
    by_class: dict[int, list[int]] = {label: [] for label in range(len(tables.per_class))}
    for row, (true, given) in enumerate(zip(tables.labels, tables.predicted, strict=True)):
        if true == given:
            by_class[true].append(row)
    for label, rows in by_class.items():
        rows.sort(key=lambda row: -tables.confidence[row])
        start = max(0, (len(rows) - count) // 2)
        by_class[label] = rows[start : start + count]
    return by_class


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
    """Return the temperature that minimises the log loss of held-out images, within ``TEMPERATURE_RANGE``.

    The negative log likelihood of ``softmax(b z)`` is convex in ``b = 1 / T``; bisection finds the zero of
    its slope, the mean of ``E_p[z] - z_label``. An end of the range is returned where there is none: all
    images are right, or the logits are uninformative.

    Paper: Guo et al. 2017, section 4.2, temperature scaling.
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
    draw_reliability(bins, axes, Inks(INK, SOFT))
    return inline_svg(figure, name)


def draw_reliability(bins: Sequence[CalibrationBin], axes: Axes, inks: Inks) -> None:
    """Draw a reliability diagram; the opacity shows how many images each bin has."""
    filled = [entry for entry in bins if entry.count]
    most = max((entry.count for entry in filled), default=1)
    axes.plot([0, 1], [0, 1], color=inks.soft, linewidth=1, linestyle="--", label="calibrated")
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
    axes.legend(frameon=False, labelcolor=inks.ink, loc="upper left")
