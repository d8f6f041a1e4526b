"""Significance of the difference of two models: over seeds, over test samples, corrected for many pairs.

Tests over seeds account for the randomness of the training, paired tests over test samples for that of the
test set.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float64, Int64

CONFIDENCE = 0.95
RESAMPLING_SEED = 12345  # sacrebleu's, for the same resamples


class Difference(NamedTuple):
    """Confidence interval and p-value of a score difference."""

    lower: float
    """Of the 95 % interval."""
    upper: float
    p: float
    """Two-sided."""


def seed_interval(scores: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % Student's t interval of the mean score, from at least two seeds."""
    from scipy.special import stdtrit  # Student's quantiles

    mean, error = statistics.fmean(scores), statistics.stdev(scores) / math.sqrt(len(scores))
    half = float(stdtrit(len(scores) - 1, (1 + CONFIDENCE) / 2)) * error
    return mean - half, mean + half


def welch(first: Sequence[float], second: Sequence[float]) -> Difference:
    """Compare the mean scores of two models, each over at least two seeds, by Welch's t test.

    If all scores of each model are equal, any difference counts as certain.

    Paper: Welch 1947, with the degrees of freedom of Satterthwaite 1946.
    """
    from scipy.special import stdtr, stdtrit  # Student's tails and quantiles

    difference = statistics.fmean(first) - statistics.fmean(second)
    parts = [statistics.variance(scores) / len(scores) for scores in (first, second)]
    if sum(parts) == 0:
        return Difference(difference, difference, float(difference == 0))
    least = min(len(first), len(second)) - 1
    divisor = sum(part**2 / (len(scores) - 1) for part, scores in zip(parts, (first, second), strict=True))
    freedom = max(sum(parts) ** 2 / divisor, least)  # which it is, but for rounding
    error = math.sqrt(sum(parts))
    half = float(stdtrit(freedom, (1 + CONFIDENCE) / 2)) * error
    p = 2 * float(stdtr(freedom, -abs(difference / error)))
    return Difference(difference - half, difference + half, p)


def mcnemar_exact(only_first: int, only_second: int) -> float:
    """Return the p-value of McNemar's exact test: a sign test on the samples that one model alone got right.

    Paper: McNemar 1947; Dietterich 1998, section 3.1, of classifiers.

    >>> mcnemar_exact(0, 5), mcnemar_exact(7, 7)
    (0.0625, 1.0)
    """
    from scipy.special import bdtr  # the binomial distribution

    return min(1.0, 2 * float(bdtr(min(only_first, only_second), only_first + only_second, 0.5)))


def resample(count: int, num_resamples: int) -> Iterator[Int64[np.ndarray, " count"]]:
    """Yield resamples of the sample indices with replacement; the same ones at every call."""
    generator = np.random.default_rng(RESAMPLING_SEED)
    for _ in range(num_resamples):
        yield generator.choice(count, size=count)


def resampled_interval(scores: Float64[np.ndarray, " resamples"]) -> tuple[float, float]:
    """Return the 95 % percentile interval (Efron and Tibshirani 1993, chapter 13)."""
    tail = (1 - CONFIDENCE) / 2
    lower, upper = np.quantile(scores, [tail, 1 - tail])
    return float(lower), float(upper)


def paired_bootstrap(
    difference: float, first: Float64[np.ndarray, " resamples"], second: Float64[np.ndarray, " resamples"]
) -> Difference:
    """Compare two models by their scores on the same resamples of the test samples.

    The p-value is the share of resamples whose difference is as far from the mean difference as the measured
    one is from zero, with one added to both counts.

    Args:
        difference: of the scores on all samples.
        first, second: scores of each model on the same resamples.

    Paper: Koehn 2004; Riezler and Maxwell 2005, section 3 (the shift). Departs from sacrebleu, which is
    one-sided, and calls two models that are equal in every sample different.
    """
    drawn = first - second
    is_as_far = np.abs(drawn - drawn.mean()) >= abs(difference) - 1e-12  # equal but for rounding
    p = (int(is_as_far.sum()) + 1) / (len(drawn) + 1)
    return Difference(*resampled_interval(drawn), p)


def require_both(over_seeds: Difference, over_samples: Difference) -> Difference:
    """Join two tests that must both be significant: over seeds and over samples.

    An intersection-union test: the greater p, and the hull of both intervals (Berger 1982).
    """
    return Difference(
        min(over_seeds.lower, over_samples.lower),
        max(over_seeds.upper, over_samples.upper),
        max(over_seeds.p, over_samples.p),
    )


def holm(p_values: Sequence[float]) -> list[float]:
    """Correct p-values for multiple tests.

    Paper: Holm 1979.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    corrected, former = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(order):
        former = max(former, min(1.0, (len(p_values) - rank) * p_values[index]))
        corrected[index] = former
    return corrected


def resample_corpus(
    metric: Any, runs: Sequence[Sequence[str]], streams: Sequence[Sequence[str | None]], num_resamples: int
) -> Float64[np.ndarray, " {num_resamples}"]:
    """Return the mean corpus score of some runs on each resample of their sentences.

    Sentence statistics, the score of their sums and the resamples are sacrebleu's.

    Args:
        metric: sacrebleu's BLEU.
        streams: references, as sacrebleu takes them.

    Paper: Koehn 2004, Statistical Significance Tests for Machine Translation Evaluation, section 3.
    """
    # sacrebleu's own paired tests use these methods; it has no public ones for them.
    per_sentence = [
        np.array(metric._extract_corpus_statistics(list(texts), streams), dtype="float32") for texts in runs
    ]
    scores = np.empty((num_resamples, len(runs)))
    for row, drawn in enumerate(resample(len(runs[0]), num_resamples)):
        for column, each in enumerate(per_sentence):
            scores[row, column] = metric._compute_score_from_stats(each[drawn].sum(axis=0)).score
    return scores.mean(axis=1)
