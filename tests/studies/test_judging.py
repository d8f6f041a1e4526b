"""Standings and tests of a comparison, on outcomes that are made up: no training."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from making.comparisons import make_run
from vitrail.core.errors import DataError
from vitrail.report.significance import holm, mcnemar_exact, seed_interval, welch
from vitrail.studies.comparison import Comparison
from vitrail.studies.judging import judge, stand_all
from vitrail.tasks.classification.comparing import Accuracy

COUNT = 120


class MadeUp(Accuracy):
    """That of classifiers, of which each is right in the first so many images."""

    least_resamples = 300

    def __init__(self, correct: dict[str, int]) -> None:
        self.correct = correct
        self.asked: list[int] = []

    def read(self, folder: Path) -> np.ndarray:
        if folder.name not in self.correct:
            raise DataError("no report", expected="one", remedy="Train again")
        return np.arange(COUNT) < self.correct[folder.name]

    def resample(self, runs, num_resamples):
        self.asked.append(num_resamples)
        return super().resample(runs, num_resamples)


def compared(correct: dict[str, int], **changes: object) -> Comparison:
    """Return a comparison of runs that are called as in ``vit-0``: name and seed."""
    fields = {"lower": 0.1, "upper": 0.9, "samples": "photos@1|test|120", **changes}
    runs = []
    for folder, number in correct.items():
        name, seed = folder.split("-")
        run = make_run(name, int(seed), score=number / COUNT, **fields)
        runs.append(run.model_copy(update={"folder": folder}))
    return Comparison(kind="model", data="photos", score="accuracy", budget_s=60, runs=tuple(runs))


def test_one_seed_is_tested_by_mcnemar_and_keeps_the_interval_of_its_report():
    correct = {"good-0": 100, "fair-0": 90, "bad-0": 60}
    judged = judge(Path(), compared(correct), MadeUp(correct))

    assert [standing.name for standing in judged.standings] == ["good", "fair", "bad"]
    assert {(each.over, each.lower, each.upper) for each in judged.standings} == {("samples", 0.1, 0.9)}
    assert [(test.first, test.second) for test in judged.pairs] == [
        ("good", "fair"),
        ("good", "bad"),
        ("fair", "bad"),
    ]
    p_values = [test.p for test in judged.pairs]
    assert p_values == [mcnemar_exact(10, 0), mcnemar_exact(40, 0), mcnemar_exact(30, 0)]
    assert [test.p_corrected for test in judged.pairs] == holm(p_values)
    assert {test.test for test in judged.pairs} == {"mcnemar"}
    assert all(test.lower < test.difference < test.upper for test in judged.pairs)
    assert "better than fair and bad" in judged.statements[0]


def test_several_seeds_have_an_interval_over_seeds_and_must_pass_both_tests():
    correct = {"good-0": 100, "bad-0": 90, "good-1": 60, "bad-1": 52, "good-2": 101, "bad-2": 93}
    judged = judge(Path(), compared(correct), MadeUp(correct))

    good = judged.standings[0]
    assert (good.seeds, good.over) == ((0, 1, 2), "seeds")
    expected = seed_interval([100 / 120, 60 / 120, 101 / 120])
    assert (good.lower, good.upper) == (expected[0], min(1.0, expected[1]))
    (test,) = judged.pairs
    over_seeds = welch([100 / 120, 0.5, 101 / 120], [90 / 120, 52 / 120, 93 / 120])
    assert test.test == "welch and bootstrap"
    assert test.p == pytest.approx(over_seeds.p)  # the greater one: seeds differ by more than the models
    assert (test.lower, test.upper) == pytest.approx((over_seeds.lower, over_seeds.upper))
    assert not test.is_significant


def test_steady_seeds_leave_the_doubt_to_the_test_samples():
    correct = {"good-0": 100, "bad-0": 99, "good-1": 100, "bad-1": 99}
    (test,) = judge(Path(), compared(correct), MadeUp(correct)).pairs
    assert test.p > 0.2
    assert not test.is_significant


def test_one_seed_is_not_tested_against_several():
    correct = {"good-0": 100, "bad-0": 60, "good-1": 101}
    judged = judge(Path(), compared(correct), MadeUp(correct))
    assert not judged.pairs
    assert "not tested against bad" in judged.statements[0]
    assert any("where there is one seed: bad" in sentence for sentence in judged.statements)


def test_runs_on_other_test_samples_or_without_a_report_take_no_part_in_tests():
    correct = {"good-0": 100, "bad-0": 60}
    comparison = compared(correct)
    first, second = comparison.runs
    assert second.figures is not None
    moved = second.model_copy(update={"figures": second.figures.with_changes({"samples": "photos@2|test|7"})})
    judged = judge(Path(), comparison.model_copy(update={"runs": (first, moved)}), MadeUp(correct))
    assert len(judged.standings) == 2
    assert not judged.pairs

    judged = judge(Path(), comparison, MadeUp({"good-0": 100}))
    assert len(judged.standings) == 2
    assert not judged.pairs


def test_resamples_give_an_interval_where_the_report_has_none():
    correct = {"good-0": 100, "bad-0": 60}
    judged = judge(Path(), compared(correct, lower=None, upper=None), MadeUp(correct))
    for standing in judged.standings:
        assert standing.lower < standing.score < standing.upper


def test_many_pairs_need_more_resamples():
    correct = {f"model{number}-0": 60 + number for number in range(8)}
    metric = MadeUp(correct)
    judged = judge(Path(), compared(correct), metric)
    assert len(judged.pairs) == 28
    assert set(metric.asked) == {28 * 40}


def test_a_new_run_drops_the_tests_of_the_former_ones():
    correct = {"good-0": 100, "bad-0": 60}
    judged = judge(Path(), compared(correct), MadeUp(correct))
    assert not stand_all(judged).pairs
