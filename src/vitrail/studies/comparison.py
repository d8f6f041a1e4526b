"""Trainings side by side: what is known of each run, of each model, and of each pair of models."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from pydantic import Field

from vitrail.core.config import Config

LEVEL = 0.05  # of corrected tests: differences that chance makes less often are shown


class ScoreWords(NamedTuple):
    """How a score is written."""

    label: str
    """Its name."""
    factor: float = 1.0
    """What it is multiplied by."""
    suffix: str = ""
    """What follows the number."""
    most: float = 1.0
    """The greatest there is, before it is multiplied."""
    samples: str = "test samples"
    """What it is measured on."""
    macs_of: str = "one forward pass"
    """What the counted operations are of."""

    def format(self, score: float) -> str:
        """Write a score."""
        return f"{self.factor * score:.1f}{self.suffix}"

    def format_interval(self, lower: float | None, upper: float | None) -> str:
        """Write an interval without the suffix; a dash where there is none."""
        if lower is None or upper is None:
            return "-"
        return f"{self.factor * lower:.1f}-{self.factor * upper:.1f}"


SCORES: Mapping[str, ScoreWords] = {
    "accuracy": ScoreWords("accuracy", 100, "%", 1, "test images", "one image's forward pass"),
    "balanced_accuracy": ScoreWords("class mean", 100, "%", 1, "test images", "one image's forward pass"),
    "real_accuracy": ScoreWords("ReaL", 100, "%", 1, "test images", "one image's forward pass"),
    "bleu": ScoreWords(
        "BLEU", 1, "", 100, "test sentences", "one forward pass of 32 source and 32 target subwords"
    ),
    "bleu4": ScoreWords(
        "BLEU-4", 100, "", 1, "test images", "one forward pass of an image and a caption of 16 tokens"
    ),
    "ap": ScoreWords("AP", 100, "", 1, "test images", "one image's forward pass"),
}
"""The scores that models are ranked by, as reports name them."""
FURTHER: Mapping[str, ScoreWords] = {
    "chrf": ScoreWords("chrF"),
    "cider": ScoreWords("CIDEr", 100),
    "ap50": ScoreWords("AP50", 100),
}
"""Scores that are told beside them."""


class CurvePoint(Config):
    """One validation of a training."""

    step: int
    """Steps done."""
    elapsed_s: float
    """Training time so far."""
    score: float
    """The score that models are ranked by, on the validation samples."""


class Figures(Config):
    """What one training came to."""

    score: float
    """The score that models are ranked by, on the test samples."""
    lower: float | None
    """Lower end of its 95 % interval over the test samples, where the report of the run has one."""
    upper: float | None
    """Upper end of it."""
    further: dict[str, float] = Field(default_factory=dict)
    """Other scores, by their names in the report."""
    samples: str
    """Which samples they were measured on, with their number."""
    parameters: int
    """Learned numbers of the model."""
    macs: int
    """Multiplications of a forward pass, as the model's card counts them."""
    samples_per_s: float
    """Training samples a second: the median over the training, without validation and saving."""
    peak_memory_mib: float | None
    """Most memory that the training process held; None where nobody counts it."""
    steps: int
    """Optimiser steps that the budget allowed."""
    training_s: float
    """Time of the steps, validations and checkpoints."""
    curve: tuple[CurvePoint, ...] = ()
    """The validations of the training."""


class ComparedRun(Config):
    """One of the trainings that are compared."""

    name: str
    """The mixer or the model."""
    seed: int
    """Its seed."""
    folder: str | None = None
    """Its run directory, within the comparison's folder."""
    figures: Figures | None = None
    """None until it is finished."""
    error: str = ""
    """Why it failed, if it did."""


class Standing(Config):
    """A mixer or model over all of its finished runs."""

    name: str
    """Which one."""
    seeds: tuple[int, ...]
    """The seeds of its finished runs."""
    score: float
    """The mean score."""
    lower: float | None
    """Lower end of its 95 % interval; null where there is none."""
    upper: float | None
    """Upper end of it."""
    over: Literal["seeds", "samples"]
    """What the interval is over: other seeds, or other test samples where there is one seed."""
    further: dict[str, float]
    """The means of other scores."""
    parameters: int
    """Learned numbers of the model."""
    macs: int
    """Multiplications of a forward pass."""
    samples_per_s: float
    """Training samples a second, the mean over the runs."""
    peak_memory_mib: float | None
    """The most that any of the runs held."""
    steps: int
    """Optimiser steps, the mean over the runs."""
    training_s: float
    """Training time, the mean over the runs."""


class PairTest(Config):
    """Whether two mixers or models differ."""

    first: str
    """The one with the higher score."""
    second: str
    """The other one."""
    difference: float
    """Of their mean scores."""
    lower: float
    """Lower end of its 95 % interval, not corrected."""
    upper: float
    """Upper end of it."""
    p: float
    """How often chance alone makes so great a difference."""
    p_corrected: float
    """The same with the number of pairs in mind (Holm 1979)."""
    test: Literal["mcnemar", "bootstrap", "welch and bootstrap"]
    """McNemar's exact test or the paired bootstrap over test samples; with several seeds the latter and
    Welch's t test over seeds, both of which must show the difference."""

    @property
    def is_shown(self) -> bool:
        """Whether the difference is more than chance."""
        return self.p_corrected < LEVEL and (self.lower > 0 or self.upper < 0)


class Comparison(Config):
    """Everything that ``comparison.json`` holds."""

    kind: Literal["mixer", "model"]
    """What differs between the runs."""
    data: str
    """What all were trained on."""
    score: str
    """The score that they are ranked by, as reports name it."""
    budget_s: float
    """Wall-clock time of each run, in seconds."""
    changes: Mapping[str, Any] = Field(default_factory=dict)
    """Settings that all runs share, by their dotted paths."""
    runs: tuple[ComparedRun, ...] = ()
    """One for each seed of each mixer or model, in the order in which they are trained."""
    standings: tuple[Standing, ...] = ()
    """The mixers or models with a finished run, the highest score first."""
    pairs: tuple[PairTest, ...] = ()
    """Every pair of them that could be compared on the same test samples."""
    statements: tuple[str, ...] = ()
    """What the figures say, in sentences."""

    @property
    def words(self) -> ScoreWords:
        """How the score is written."""
        return SCORES[self.score]

    @property
    def names(self) -> list[str]:
        """The mixers or models, in the order in which they are trained."""
        return list(dict.fromkeys(run.name for run in self.runs))

    def finished(self, name: str) -> list[ComparedRun]:
        """Return the finished runs of a mixer or model."""
        return [run for run in self.runs if run.name == name and run.figures is not None]

    def pair(self, one: str, other: str) -> PairTest | None:
        """Return the test of two mixers or models, if there is one."""
        return next((test for test in self.pairs if {test.first, test.second} == {one, other}), None)


def comparison_table(comparison: Comparison) -> tuple[list[str], list[list[str]]]:
    """Return the header and the rows of the table: the highest score first, those without any at the end."""
    words, standings = comparison.words, comparison.standings
    further = list(standings[0].further) if standings else []
    header = [comparison.kind, words.label, "95 %", *(FURTHER[name].label for name in further)]
    header += ["steps", "param.", "MACs", "samples/s", "peak MiB"]
    rows = [[standing.name, *_cells(standing, words, further)] for standing in standings]
    placed = {standing.name for standing in standings}
    for name in comparison.names:
        if name not in placed:
            failed = any(run.error for run in comparison.runs if run.name == name)
            rows.append([name, "failed" if failed else "-", *"-" * (len(header) - 2)])
    return header, rows


def stand(runs: Sequence[ComparedRun], interval: tuple[float, float] | None) -> Standing:
    """Join the finished runs of a mixer or model.

    Args:
        runs: of one name, all with figures.
        interval: of the mean score, if there is one.
    """
    figures = [run.figures for run in runs if run.figures is not None]
    lower, upper = (None, None) if interval is None else interval
    memory = [each.peak_memory_mib for each in figures if each.peak_memory_mib is not None]
    return Standing(
        name=runs[0].name,
        seeds=tuple(run.seed for run in runs),
        score=statistics.fmean(each.score for each in figures),
        lower=lower,
        upper=upper,
        over="seeds" if len(figures) > 1 else "samples",
        further={
            name: statistics.fmean(each.further[name] for each in figures)
            for name in FURTHER
            if all(name in each.further for each in figures)
        },
        parameters=figures[0].parameters,
        macs=figures[0].macs,
        samples_per_s=statistics.fmean(each.samples_per_s for each in figures),
        peak_memory_mib=max(memory, default=None),
        steps=round(statistics.fmean(each.steps for each in figures)),
        training_s=statistics.fmean(each.training_s for each in figures),
    )


def format_count(count: float) -> str:
    """Write a great number with three digits.

    >>> format_count(1_234_567), format_count(98_700_000_000), format_count(512)
    ('1.23 M', '98.7 G', '512')
    """
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= size:
            digits = 2 if count < 10 * size else 1 if count < 100 * size else 0
            return f"{count / size:.{digits}f} {unit}"
    return f"{count:.0f}"


def _cells(standing: Standing, words: ScoreWords, further: Sequence[str]) -> list[str]:
    memory = "-" if standing.peak_memory_mib is None else f"{standing.peak_memory_mib:,.0f}"
    return [
        words.format(standing.score),
        words.format_interval(standing.lower, standing.upper),
        *(FURTHER[name].format(standing.further[name]) for name in further),
        f"{standing.steps:,}",
        format_count(standing.parameters),
        format_count(standing.macs),
        f"{standing.samples_per_s:,.0f}",
        memory,
    ]
