"""Conclusions of a comparison in sentences: no more than its numbers support."""

from __future__ import annotations

from collections.abc import Sequence

from vitrail.core.duration import format_duration
from vitrail.studies.comparison import Comparison

UNEVEN = 3.0  # times the steps of the run with the fewest; training speeds of mixers differ by less
FEW_STEPS = 100  # with fewer the learning rate schedule is hardly traversed, whatever the data
MOST_NAMED = 4


def state(comparison: Comparison) -> tuple[str, ...]:
    """Return the conclusions, what their intervals are over, and caveats."""
    sentences = [_leader(comparison), *_others(comparison), *_doubts(comparison), _basis(comparison)]
    return tuple(sentence for sentence in sentences if sentence)


def conditions(comparison: Comparison) -> str:
    """Return how the runs were trained."""
    changes = dict(comparison.changes)
    steps = changes.pop("train.steps", None)
    length = f"{steps} steps" if steps else format_duration(comparison.budget_s)
    parts = [f"Each {comparison.kind} was trained for {length}", _seeds(comparison)]
    parts += [f"{path}={value}" for path, value in changes.items()]
    everything = "" if steps else ", from opening the data to the report"
    return ", ".join(parts) + f"{everything}, one after the other on the same machine."


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
    first, *others = standings
    if not others:
        return f"{first.name} alone is finished: there is nothing to compare it with."
    tests = {other.name: comparison.pair(first.name, other.name) for other in others}
    beaten = [name for name, test in tests.items() if test is not None and test.is_shown]
    level = [name for name, test in tests.items() if test is not None and not test.is_shown]
    untested = [name for name, test in tests.items() if test is None]
    said = []
    if beaten:
        said.append(f"is better than {join_names(beaten)} by more than {_chance(comparison)}")
    if level:
        said.append(f"no difference to {join_names(level, 'or')} is shown")
    if untested:
        said.append(f"it was not tested against {join_names(untested)}")
    score = f"{first.name} has the highest {label}, {comparison.words.format(first.score)}"
    return f"{score}{', and ' if beaten else '; '}{'; '.join(said)}."


def _others(comparison: Comparison) -> list[str]:
    """Name the significant differences between others than the first."""
    if not comparison.standings:
        return []
    first = comparison.standings[0].name
    shown = [test for test in comparison.pairs if test.is_shown and first not in (test.first, test.second)]
    if not shown:
        return []
    named = [f"{test.first} over {test.second}" for test in shown]
    return [f"Shown as well: {join_names(named)}."]


def _chance(comparison: Comparison) -> str:
    """Say which sources of chance the tests account for."""
    tested_seeds = any(test.test == "welch and bootstrap" for test in comparison.pairs)
    samples = f"the choice of {comparison.words.samples}"
    return f"seeds and {samples} explain" if tested_seeds else f"{samples} explains"


def _doubts(comparison: Comparison) -> list[str]:
    """Say why the scores are no ranking of architectures, if so."""
    steps = [run.figures.steps for run in comparison.runs if run.figures is not None]
    if not steps:
        return []
    if max(steps) > UNEVEN * min(steps):
        return [
            f"The runs had {min(steps):,} to {max(steps):,} steps: with so short a budget, start-up and "
            "speed decide more than the architecture. Give a longer one."
        ]
    if min(steps) < FEW_STEPS:
        return [
            f"Runs of {min(steps):,} steps show how training begins; they are no ranking of what is "
            f"compared. Give {'more steps' if 'train.steps' in comparison.changes else 'a longer budget'}."
        ]
    return []


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
    return f"{over} A difference is shown where p{corrected} is below 0.05 and its interval excludes zero."


def _seeds(comparison: Comparison) -> str:
    seeds = list(dict.fromkeys(run.seed for run in comparison.runs))
    if len(seeds) == 1:
        return f"with seed {seeds[0]}"
    return f"with seeds {join_names([str(seed) for seed in seeds])}"
