"""Intervals and tests of a comparison, held against scipy, sacrebleu and what they promise."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from vitrail.report.significance import (
    Difference,
    holm,
    mcnemar_exact,
    paired_bootstrap,
    require_both,
    resample,
    resampled_interval,
    seed_interval,
    welch,
)

stats = pytest.importorskip("scipy.stats")


@pytest.mark.parametrize("count", [2, 3, 8, 41])
def test_the_interval_over_seeds_is_students(count):
    scores = np.random.default_rng(count).normal(0.9, 0.02, count).tolist()
    expected = stats.t.interval(0.95, count - 1, loc=np.mean(scores), scale=stats.sem(scores))
    assert seed_interval(scores) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("counts", [(3, 2), (2, 2), (9, 4), (60, 41)])
@pytest.mark.parametrize("shift", [0.0, 0.03, -0.3])
def test_means_of_seeds_are_compared_as_welch_does(counts, shift):
    noise = np.random.default_rng(sum(counts))
    means, spreads = (0.9, 0.9 + shift), (0.02, 0.01)
    first, second = (noise.normal(*drawn).tolist() for drawn in zip(means, spreads, counts, strict=True))
    expected = stats.ttest_ind(first, second, equal_var=False)
    found = welch(first, second)
    assert found.p == pytest.approx(expected.pvalue, abs=2e-6)
    interval = expected.confidence_interval(0.95)
    assert (found.lower, found.upper) == pytest.approx((interval.low, interval.high), rel=1e-4)


def test_equal_seeds_leave_no_doubt_of_the_seeds():
    assert welch([0.9, 0.9], [0.8, 0.8]).p == 0
    assert welch([0.9, 0.9], [0.9, 0.9]).p == 1


@pytest.mark.parametrize(("first", "second"), [(0, 0), (1, 0), (3, 11), (40, 17), (900, 1100)])
def test_mcnemar_is_a_binomial_test(first, second):
    expected = stats.binomtest(first, first + second).pvalue if first + second else 1.0
    assert mcnemar_exact(first, second) == pytest.approx(expected, rel=1e-9)


def test_resamples_are_the_same_at_every_call():
    first, second = ([row.tolist() for row in resample(7, 3)] for _ in range(2))
    assert first == second
    assert first[0] != first[1]


def test_a_clear_difference_is_shown_and_an_equal_pair_is_not():
    draws = np.stack([*resample(200, 400)])
    right = np.arange(200) % 10 != 0  # 90 %
    worse = np.arange(200) % 4 != 0  # 75 %
    scores, lower_scores = right[draws].mean(axis=1), worse[draws].mean(axis=1)

    clear = paired_bootstrap(0.15, scores, lower_scores)
    same = paired_bootstrap(0.0, scores, scores)

    assert clear.lower > 0 or clear.upper < 0
    assert clear.p == pytest.approx(1 / 401)
    assert clear.lower < 0.15 < clear.upper
    assert same == Difference(0.0, 0.0, 1.0)
    assert same.lower <= 0 <= same.upper


def test_the_bootstrap_errs_about_as_often_as_it_says():
    generator = np.random.default_rng(3)
    draws = np.stack([*resample(150, 200)])
    wrong = 0
    for _ in range(200):
        first, second = generator.random((2, 150)) < 0.8
        found = paired_bootstrap(
            first.mean() - second.mean(), first[draws].mean(axis=1), second[draws].mean(axis=1)
        )
        wrong += found.p < 0.05
    assert 1 <= wrong <= 22  # of 200, 10 are expected; 22 lie 4 standard deviations above


def test_an_interval_of_resamples_holds_95_of_100():
    assert resampled_interval(np.arange(1001.0)) == pytest.approx((25, 975))


def test_both_tests_must_show_a_difference():
    seeds, samples = Difference(-0.02, 0.12, 0.2), Difference(0.03, 0.07, 0.001)
    assert require_both(seeds, samples) == Difference(-0.02, 0.12, 0.2)
    both = require_both(seeds, samples)
    assert both.lower <= 0 <= both.upper


def test_holm_is_never_below_the_p_and_keeps_their_order():
    for values in itertools.permutations([0.004, 0.03, 0.02, 0.5]):
        corrected = holm(values)
        assert all(after >= before for before, after in zip(values, corrected, strict=True))
        assert sorted(range(4), key=values.__getitem__) == sorted(
            range(4), key=lambda i: (corrected[i], values[i])
        )
    assert holm([]) == []
    assert holm([0.9, 0.8]) == [1.0, 1.0]
