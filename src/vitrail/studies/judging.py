"""What the finished runs of a comparison come to: standings with intervals, and tests of every pair."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

import numpy as np

from vitrail.core.errors import CheckpointError, VitrailError
from vitrail.models.cost import count_model, count_parameters
from vitrail.report.significance import (
    Difference,
    holm,
    paired_bootstrap,
    require_both,
    resampled_interval,
    seed_interval,
    welch,
)
from vitrail.studies.comparison import (
    FURTHER,
    LEVEL,
    SCORES,
    ComparedRun,
    Comparison,
    CurvePoint,
    Figures,
    PairTest,
    concluded,
    stand,
)
from vitrail.tasks.contract import ComparisonMetric
from vitrail.tasks.registry import open_run
from vitrail.train.checkpoints import read_metrics
from vitrail.train.evaluate import Report

LEAST_P_SHARE = 0.5  # of the level, which the least p of resampling is to stay below after correction


@dataclass(frozen=True)
class Contestant:
    """A mixer or model with what came out of its runs for each test sample."""

    runs: Sequence[ComparedRun]
    """Its finished runs."""
    outcomes: Sequence[Any]
    """What the metric read of each."""
    resampled: np.ndarray
    """The mean score of the runs on each resample of the test samples."""

    @property
    def name(self) -> str:
        return self.runs[0].name

    @property
    def mean(self) -> float:
        return float(np.mean(_scores(self.runs)))


def stand_all(comparison: Comparison, contestants: Sequence[Contestant] = ()) -> Comparison:
    """Give every mixer or model with a finished run its place; tests of what was known before are dropped.

    Args:
        contestants: what is known of their test samples, if anything; it gives intervals to those with one
            seed whose report has none.
    """
    known = {contestant.name: contestant.resampled for contestant in contestants}
    most = comparison.words.most
    standings = []
    for name in comparison.names:
        if runs := comparison.finished(name):
            interval = _interval(runs, known.get(name))
            clipped = None if interval is None else (max(0.0, interval[0]), min(most, interval[1]))
            standings.append(stand(runs, clipped))
    standings.sort(key=lambda standing: -standing.score)
    return concluded(comparison, standings=tuple(standings), pairs=())


def judge(folder: Path, comparison: Comparison, metric: ComparisonMetric) -> Comparison:
    """Place all mixers or models and test every pair of them on the same test samples.

    Runs that were not scored on the test samples of the first one take no part in the tests.
    """
    names = [name for name in comparison.names if comparison.finished(name)]
    num_pairs = len(names) * (len(names) - 1) // 2
    # The least p, times the pairs, must lie well below the level, or no difference could ever be shown.
    num_resamples = max(metric.least_resamples, round(num_pairs / (LEAST_P_SHARE * LEVEL)))
    contestants = list(_read(folder, comparison, names, metric, num_resamples))
    placed = stand_all(comparison, contestants)
    ranks = {standing.name: rank for rank, standing in enumerate(placed.standings)}
    pairs = _test_pairs(sorted(contestants, key=lambda each: ranks[each.name]), metric)
    return concluded(placed, pairs=tuple(pairs))


def _read(
    folder: Path, comparison: Comparison, names: Iterable[str], metric: ComparisonMetric, num_resamples: int
) -> Iterator[Contestant]:
    """Yield those whose outcomes can be read, and were measured on the same samples."""
    samples = ""
    for name in names:
        runs, outcomes = [], []
        for run in comparison.finished(name):
            assert run.figures is not None
            assert run.folder is not None
            samples = samples or run.figures.samples
            if run.figures.samples == samples:
                try:
                    outcomes.append(metric.read(folder / run.folder))
                except VitrailError:  # a file of a finished run is gone: its figures stay, its tests do not
                    continue
                runs.append(run)
        if runs:
            yield Contestant(runs, outcomes, metric.resample(outcomes, num_resamples))


def _test_pairs(ranked: Sequence[Contestant], metric: ComparisonMetric) -> list[PairTest]:
    """Test each pair, and correct for their number.

    One seed against several is not tested: the seeds of one vary, and nobody knows how those of the other do.
    """
    found = [
        (first, second, *_test(first, second, metric))
        for first, second in combinations(ranked, 2)
        if (len(first.runs) > 1) == (len(second.runs) > 1)
    ]
    corrected = holm([difference.p for *_, difference, _ in found])
    most = SCORES[metric.score].most
    return [
        PairTest(
            first=first.name,
            second=second.name,
            difference=first.mean - second.mean,
            lower=max(-most, difference.lower),
            upper=min(most, difference.upper),
            p=difference.p,
            p_corrected=p_corrected,
            test=test,
        )
        for (first, second, difference, test), p_corrected in zip(found, corrected, strict=True)
    ]


def _test(
    first: Contestant, second: Contestant, metric: ComparisonMetric
) -> tuple[Difference, Literal["mcnemar", "bootstrap", "welch and bootstrap"]]:
    over_samples = paired_bootstrap(first.mean - second.mean, first.resampled, second.resampled)
    if len(first.runs) > 1:
        return require_both(
            welch(_scores(first.runs), _scores(second.runs)), over_samples
        ), "welch and bootstrap"
    exact = metric.exact_p(first.outcomes[0], second.outcomes[0])
    if exact is not None:
        return over_samples._replace(p=exact), "mcnemar"
    return over_samples, "bootstrap"


def _interval(runs: Sequence[ComparedRun], resampled: np.ndarray | None) -> tuple[float, float] | None:
    """Return the interval of the mean score: over seeds, or over the test samples of the only run."""
    if len(runs) > 1:
        return seed_interval(_scores(runs))
    figures = runs[0].figures
    assert figures is not None
    if figures.lower is not None and figures.upper is not None:
        return figures.lower, figures.upper
    return None if resampled is None else resampled_interval(resampled)


def _scores(runs: Sequence[ComparedRun]) -> list[float]:
    return [run.figures.score for run in runs if run.figures is not None]


def measure_run(folder: Path, metric: ComparisonMetric) -> Figures:
    """Read the results of a finished run directory.

    Raises:
        CheckpointError: the run is not finished, or a file is damaged.
        DataError: the report is missing or damaged.
    """
    run, report = open_run(folder), Report.load(folder / "report.json")
    entries = read_metrics(run)
    logged = [entry for entry in entries if entry.get("kind") == "train"]
    if not logged:
        raise CheckpointError(
            f"{folder / 'metrics.jsonl'} holds no training step",
            expected="the record of a finished run",
            remedy="Remove the run directory, then run the comparison again",
        )
    peaks = [entry["peak_memory_mib"] for entry in logged if entry.get("peak_memory_mib") is not None]
    config, scores, name = run.experiment.model, report.scores, metric.score
    return Figures(
        score=scores[name],
        lower=scores.get(f"{name}_lower"),
        upper=scores.get(f"{name}_upper"),
        further={other: scores[other] for other in FURTHER if other in scores},
        samples="|".join(report.signature[key] for key in ("data", "split", "samples")),
        parameters=count_parameters(config.build),
        macs=count_model(config).macs,
        samples_per_s=statistics.median(entry["samples_per_s"] for entry in logged),
        peak_memory_mib=max(peaks, default=None),
        steps=logged[-1]["step"],
        training_s=logged[-1]["elapsed_s"],
        curve=_curve(entries, name),
    )


def _curve(entries: Sequence[Mapping[str, Any]], score: str) -> tuple[CurvePoint, ...]:
    """Return the validations; of a step that was validated twice, after a resume, the later one."""
    points = {
        entry["step"]: CurvePoint(
            step=entry["step"], elapsed_s=entry["elapsed_s"], score=entry["scores"][score]
        )
        for entry in entries
        if entry.get("kind") == "validation" and entry["scores"].get(score) is not None
    }
    return tuple(points[step] for step in sorted(points))
