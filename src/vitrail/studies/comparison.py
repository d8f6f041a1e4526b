"""Comparison of trainings: the results of each run, of each model, and of each pair of models."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from pydantic import Field

from vitrail.core.config import Config
from vitrail.core.duration import format_duration

LEVEL = 0.05  # significance level of the corrected tests


class ScoreWords(NamedTuple):
    """How a score is formatted."""

    label: str
    factor: float = 1.0
    """Factor before display."""
    suffix: str = ""
    """Unit after the number."""
    most: float = 1.0
    """Upper bound, before scaling."""
    samples: str = "test samples"
    macs_of: str = "one forward pass"
    """What the operation count refers to."""
    decimals: int = 1
    """After the factor."""

    def format(self, score: float) -> str:
        return f"{self.number(score)}{self.suffix}"

    def number(self, score: float, sign: str = "") -> str:
        return f"{self.factor * score:{sign}.{self.decimals}f}"

    def format_interval(self, lower: float | None, upper: float | None) -> str:
        """Format an interval without the suffix; a dash where there is none."""
        if lower is None or upper is None:
            return "-"
        return f"{self.number(lower)}-{self.number(upper)}"


SCORES: Mapping[str, ScoreWords] = {
    "accuracy": ScoreWords("accuracy", 100, "%"),
    "balanced_accuracy": ScoreWords("class mean", 100, "%", 1, "test images", "one image's forward pass"),
    "real_accuracy": ScoreWords("ReaL", 100, "%", 1, "test images", "one image's forward pass"),
    "bleu": ScoreWords(
        "BLEU", 1, "", 100, "test sentences", "one forward pass of 32 source and 32 target subwords"
    ),
    "bleu4": ScoreWords(
        "BLEU-4", 1, "", 1, "test images", "one forward pass of an image and a caption of 16 tokens", 3
    ),
    "ap": ScoreWords("AP", 1, "", 1, "test images", "one image's forward pass", 3),
}
"""Ranking scores, as reports name them."""
FURTHER: Mapping[str, ScoreWords] = {
    "chrf": ScoreWords("chrF"),
    "cider": ScoreWords("CIDEr", decimals=3),
    "ap50": ScoreWords("AP50", decimals=3),
}
"""Further scores that are shown."""


class CurvePoint(Config):
    """One validation of a training."""

    step: int
    elapsed_s: float
    """Training time so far."""
    score: float
    """The ranking score on the validation samples."""


class Results(Config):
    """Results of one training, or means over several."""

    score: float
    """The ranking score on the test samples."""
    lower: float | None
    """Of its 95 % interval; None where there is none."""
    upper: float | None
    further: dict[str, float] = Field(default_factory=dict)
    """Other scores, by their names in the report."""
    parameters: int
    macs: int
    """Multiply-accumulates of a forward pass, as on the model's card."""
    samples_per_s: float
    """Training throughput: the median over a training, without validation and saving."""
    peak_memory_mib: float | None
    """Of the training process, the maximum over several; None where the platform does not report it."""
    steps: int
    """Optimiser steps within the budget."""
    training_s: float
    """Time of the steps, validations and checkpoints."""


class Figures(Results):
    """Results of one training; the interval is over the test samples, if the run's report has one."""

    samples: str
    """Which test samples, and how many."""
    curve: tuple[CurvePoint, ...] = ()


class ComparedRun(Config):
    """One of the compared trainings."""

    name: str
    """The mixer or the model."""
    seed: int
    folder: str | None = None
    """Run directory within the comparison's folder."""
    figures: Figures | None = None
    """None until it is finished."""
    error: str = ""
    """Why it failed, if it did."""


class Standing(Results):
    """A mixer or model: the means over its finished runs."""

    name: str
    seeds: tuple[int, ...]
    """Of its finished runs."""
    over: Literal["seeds", "samples"]
    """What the interval accounts for: other seeds, or with one seed other test samples."""


class PairTest(Config):
    """Significance test of two mixers or models."""

    first: str
    """The one with the higher score."""
    second: str
    difference: float
    """Of the mean scores."""
    lower: float
    """Of its 95 % interval, not corrected."""
    upper: float
    p: float
    """Uncorrected p-value."""
    p_corrected: float
    """p-value after Holm's correction (Holm 1979)."""
    test: Literal["mcnemar", "bootstrap", "welch and bootstrap"]
    """McNemar's exact test or the paired bootstrap over test samples; with several seeds the latter and
    Welch's t test over seeds, both of which must show the difference."""

    @property
    def is_significant(self) -> bool:
        return self.p_corrected < LEVEL and (self.lower > 0 or self.upper < 0)


class Comparison(Config):
    """Contents of ``comparison.json``."""

    kind: Literal["mixer", "model"]
    """What differs between the runs."""
    data: str
    score: str
    """The ranking score, as reports name it."""
    budget_s: float
    """Wall-clock budget of each run, in seconds."""
    changes: Mapping[str, Any] = Field(default_factory=dict)
    """Settings that all runs share, by dotted path."""
    runs: tuple[ComparedRun, ...] = ()
    """One per seed and mixer or model, in training order."""
    standings: tuple[Standing, ...] = ()
    """Mixers or models with a finished run, best score first."""
    pairs: tuple[PairTest, ...] = ()
    """Every pair that could be compared on the same test samples."""
    statements: tuple[str, ...] = ()
    """Conclusions in sentences."""

    @property
    def words(self) -> ScoreWords:
        return SCORES[self.score]

    @property
    def names(self) -> list[str]:
        """The mixers or models, in training order."""
        return list(dict.fromkeys(run.name for run in self.runs))

    def finished(self, name: str) -> list[ComparedRun]:
        return [run for run in self.runs if run.name == name and run.figures is not None]

    def pair(self, one: str, other: str) -> PairTest | None:
        return next((test for test in self.pairs if {test.first, test.second} == {one, other}), None)


def comparison_table(comparison: Comparison) -> tuple[list[str], list[list[str]]]:
    """Return header and rows of the table: best score first, those without a score last."""
    words, standings = comparison.words, comparison.standings
    further = list(standings[0].further) if standings else []
    header = [comparison.kind, words.label, "95 %", *(FURTHER[name].label for name in further)]
    header += ["steps", "param.", "MACs", "samples/s", "peak MiB"]
    rows = []
    for each in standings:
        scores = (words.format(each.score), words.format_interval(each.lower, each.upper))
        others = (FURTHER[name].format(each.further[name]) for name in further)
        sizes = (f"{each.steps:,}", format_count(each.parameters), format_count(each.macs))
        memory = "-" if each.peak_memory_mib is None else f"{each.peak_memory_mib:,.0f}"
        rows.append([each.name, *scores, *others, *sizes, f"{each.samples_per_s:,.0f}", memory])
    placed = {standing.name for standing in standings}
    for name in comparison.names:
        if name not in placed:
            failed = any(run.error for run in comparison.runs if run.name == name)
            rows.append([name, "failed" if failed else "-", *"-" * (len(header) - 2)])
    return header, rows


def stand(runs: Sequence[ComparedRun], interval: tuple[float, float] | None) -> Standing:
    """Summarise the finished runs of one mixer or model, with the interval of their mean score."""
    figures = [run.figures for run in runs if run.figures is not None]
    lower, upper = interval or (None, None)
    averaged = ("score", "samples_per_s", "training_s", "steps")
    means = {name: statistics.fmean(getattr(each, name) for each in figures) for name in averaged}
    return Standing(
        name=runs[0].name,
        seeds=tuple(run.seed for run in runs),
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
        peak_memory_mib=max((each.peak_memory_mib for each in figures if each.peak_memory_mib), default=None),
        **means | {"steps": round(means["steps"])},
    )


def format_count(count: float) -> str:
    """Format a large number with three digits.

    >>> format_count(1_234_567), format_count(98_700_000_000), format_count(512)
    ('1.23 M', '98.7 G', '512')
    """
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= size:
            digits = 2 if count < 10 * size else 1 if count < 100 * size else 0
            return f"{count / size:.{digits}f} {unit}"
    return f"{count:.0f}"


def format_p(p: float) -> str:
    """Format a p-value.

    >>> format_p(0.0004), format_p(0.031), format_p(1.0)
    ('< 0.001', '0.031', '1.000')
    """
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def pair_cells(test: PairTest, words: ScoreWords) -> list[str]:
    """Return the difference, its interval, p and the corrected p of a table's row."""
    difference, lower, upper = (words.number(each, "+") for each in (test.difference, test.lower, test.upper))
    return [difference, f"{lower} to {upper}", format_p(test.p), format_p(test.p_corrected)]


UNEVEN = 3.0  # times the steps of the run with the fewest; training speeds of mixers differ by less
FEW_STEPS = 100  # with fewer the learning rate schedule is hardly traversed, whatever the data
MOST_NAMED = 4


def concluded(comparison: Comparison, **changes: Any) -> Comparison:
    """Return a comparison with changed results: its conclusions, what their intervals are over, caveats."""
    changed = comparison.model_copy(update=changes)
    statements = tuple(filter(None, (said(changed) for said in (_leader, _others, _doubts, _basis))))
    return changed.model_copy(update={"statements": statements})


def conditions(comparison: Comparison) -> str:
    """Return how the runs were trained."""
    changes = dict(comparison.changes)
    steps = changes.pop("train.steps", None)
    length = f"{steps} steps" if steps else format_duration(comparison.budget_s)
    seeds = list(dict.fromkeys(str(run.seed) for run in comparison.runs))
    trained = f"Each {comparison.kind} was trained for {length}"
    with_seeds = f"with seed{'s' if len(seeds) > 1 else ''} {join_names(seeds)}"
    everything = "" if steps else ", from start to report"
    parts = (trained, with_seeds, *(f"{path}={value}" for path, value in changes.items()))
    return f"{', '.join(parts)}{everything}, one after the other on the same machine."


def join_names(names: Sequence[str], word: str = "and") -> str:
    """Join names into a phrase; of many, the first ones and the number of the rest.

    >>> join_names(["a", "b", "c"]), join_names(["a", "b", "c", "d", "e", "f"])
    ('a, b and c', 'a, b, c and 3 others')
    """
    if len(names) > MOST_NAMED:
        shown = MOST_NAMED - 1
        return f"{', '.join(names[:shown])} {word} {len(names) - shown} others"
    *former, last = names
    return f"{', '.join(former)} {word} {last}" if former else last


def _leader(comparison: Comparison) -> str:
    """Say whether the first is significantly better than the others."""
    standings, label = comparison.standings, comparison.words.label
    if not standings:
        return f"No {comparison.kind} is finished: there is nothing to compare."
    if len(standings) == 1:
        return f"{standings[0].name} alone is finished: there is nothing to compare it with."
    first = standings[0]
    leaders = [standing.name for standing in standings if standing.score == first.score]
    others = standings[len(leaders) :]
    tests = {other.name: comparison.pair(first.name, other.name) for other in others}
    beaten = [name for name, test in tests.items() if test is not None and test.is_significant]
    level = [name for name, test in tests.items() if test is not None and not test.is_significant]
    untested = [name for name, test in tests.items() if test is None]
    said = []
    if beaten:
        samples = f"the choice of {comparison.words.samples}"
        over_seeds = any(test.test == "welch and bootstrap" for test in comparison.pairs)
        chance = f"seeds and {samples} explain" if over_seeds else f"{samples} explains"
        subject = "is" if len(leaders) == 1 else f"{first.name} is"
        said.append(f"{subject} better than {join_names(beaten)} by more than {chance}")
    if level:
        said.append(f"no significant difference to {join_names(level, 'or')}")
    if untested:
        said.append(f"it was not tested against {join_names(untested)}")
    has = "has" if len(leaders) == 1 else "have"
    score = f"{join_names(leaders)} {has} the highest {label}, {comparison.words.format(first.score)}"
    return f"{score}{', and ' if beaten else '; ' if said else ''}{'; '.join(said)}."


def _others(comparison: Comparison) -> str:
    """Name the significant differences between others than the first."""
    first = comparison.standings[0].name if comparison.standings else ""
    named = [
        f"{test.first} over {test.second}"
        for test in comparison.pairs
        if test.is_significant and first not in (test.first, test.second)
    ]
    return f"Also significant: {join_names(named)}." if named else ""


def _doubts(comparison: Comparison) -> str:
    """Say why the scores are not a ranking of architectures, if so."""
    steps = [run.figures.steps for run in comparison.runs if run.figures is not None]
    if steps and max(steps) > UNEVEN * min(steps):
        return (
            f"The runs had {min(steps):,} to {max(steps):,} steps: with so short a budget, start-up and "
            "speed decide more than the architecture. Give a longer one."
        )
    if steps and min(steps) < FEW_STEPS:
        return (
            f"Runs of {min(steps):,} steps show how training begins; they do not rank what is "
            f"compared. Give {'more steps' if 'train.steps' in comparison.changes else 'a longer budget'}."
        )
    return ""


def _basis(comparison: Comparison) -> str:
    """Say what the intervals are over, and which tests count."""
    words, standings = comparison.words, comparison.standings
    if not standings:
        return ""
    single = [standing.name for standing in standings if standing.over == "samples"]
    if len(single) == len(standings):
        over = f"Intervals are over {words.samples}, 95 %; what another seed would give is not in them: "
        over += "give --seeds 3 or more to know."
    else:
        over = "Intervals are over seeds, 95 % (Student's t)"
        over += f"; over {words.samples} where there is one seed: {join_names(single)}." if single else "."
    if not comparison.pairs:
        return over
    number = len(comparison.pairs)
    corrected = f", corrected for {number} pairs (Holm)," if number > 1 else ""
    return (
        f"{over} A difference is significant where p{corrected} is below 0.05 and its interval excludes zero."
    )
