"""Train several mixers or models with the same budget each, and compare them.

Each runs as its own ``vitrail train`` process: its peak memory is its own, it cannot disturb the next one,
and it leaves an ordinary run directory.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from vitrail.core.errors import VitrailError
from vitrail.studies.command import CommandError, run_to_the_end
from vitrail.studies.comparison import ComparedRun, Comparison
from vitrail.studies.comparison_folder import (
    COMPARISON_FILE,
    COMPARISON_PAGE,
    default_name,
    folder_name,
    open_comparison,
    with_run,
    with_runs,
    write_folder,
)
from vitrail.studies.comparison_plan import ComparisonPlan, check_data, plan_comparison
from vitrail.studies.judging import judge, stand_all
from vitrail.studies.measuring import measure_run
from vitrail.tasks.contract import ComparisonMetric
from vitrail.tasks.request import DEFAULT_OUTPUT
from vitrail.tasks.training import REPORT_PAGE
from vitrail.train.run import find_run


class RunBegan(NamedTuple):
    """The next training begins or resumes."""

    name: str
    """The mixer or model."""
    seed: int
    number: int
    """Index among all runs, from 1."""
    total: int
    budget_s: float
    """Wall-clock budget of each run."""
    is_timed: bool
    """Whether the budget ends the runs, rather than a number of steps."""


class RunWent(NamedTuple):
    """Progress of a training."""

    line: str


class RunEnded(NamedTuple):
    """A training is finished, has failed, or was finished before."""

    run: ComparedRun
    score: str
    """Name of the score in ``studies.comparison.SCORES``."""
    number: int
    """Runs that have ended."""
    total: int


class Judging(NamedTuple):
    """The runs so far are being tested on resampled test samples."""


ComparisonEvent = RunBegan | RunWent | RunEnded | Judging
OnComparisonEvent = Callable[[ComparisonEvent], None]


@dataclass(frozen=True)
class Compared:
    """A comparison and its folder."""

    folder: Path
    """Holds ``comparison.json``, ``comparison.html`` and the run directories."""
    comparison: Comparison

    @property
    def page(self) -> Path:
        return self.folder / COMPARISON_PAGE


def ignore(event: ComparisonEvent) -> None:
    """Do nothing with an event."""


def compare(
    source: str | Path,
    *,
    mixers: Sequence[str] | None = None,
    models: Sequence[str] | None = None,
    budget_s: float | None = None,
    changes: Mapping[str, Any] | None = None,
    output: str | Path = DEFAULT_OUTPUT,
    name: str | None = None,
    seed: int | None = None,
    seeds: int | Sequence[int] | None = None,
    on_event: OnComparisonEvent = ignore,
) -> Compared:
    """Train token mixers or models with the same budget each, and write a page that compares them.

    In a comparison of that name, finished runs are kept, stopped ones resumed and failed ones retried. A
    failed run is recorded, and the others continue.

    Args:
        source: any data that ``train`` takes.
        mixers: names of token mixers (default: all, ``["all"]``).
        models: names of models, instead of mixers.
        budget_s: wall-clock seconds for each run (default: ten minutes).
        changes: settings that all runs share, by dotted path.
        output: parent of the comparison's folder.
        name: of that folder (default: date and data).
        seed: the only or first seed (default: 0).
        seeds: how many seeds, or which (default: one).

    Raises:
        ConfigError: a name is unknown or another task's, mixers and models are both given, a seed is given
            twice, the budget is too short, or the comparison of that name has other settings.
        DataError: the data cannot be opened.
        CheckpointError: a file cannot be read or written.
    """
    plan = plan_comparison(
        str(source),
        mixers=mixers,
        models=models,
        budget_s=budget_s,
        changes=dict(changes or {}),
        seed=seed,
        seeds=seeds,
    )
    folder = Path(output) / (name or default_name(plan.asked.data))
    comparison = with_runs(open_comparison(folder, plan.asked), plan.names, plan.seeds)
    if not (folder / COMPARISON_FILE).exists():
        check_data(plan)
    folder.mkdir(parents=True, exist_ok=True)
    write_folder(folder, comparison)
    return Compared(folder, _train_all(folder, comparison, plan, on_event))


def _train_all(
    folder: Path, comparison: Comparison, plan: ComparisonPlan, on_event: OnComparisonEvent
) -> Comparison:
    """Train what is not finished, seed by seed, and test the differences after each seed."""
    wanted = [
        run for seed in plan.seeds for run in comparison.runs if run.seed == seed and run.name in plan.names
    ]
    is_judged = bool(comparison.pairs)
    for number, former in enumerate(wanted, start=1):
        run = former
        if former.figures is None:
            is_judged = False
            on_event(_began(former, comparison, number, len(wanted)))
            run = _train(folder, comparison, former, plan.metric, on_event)
            comparison = stand_all(with_run(comparison, run))
            write_folder(folder, comparison)
        on_event(RunEnded(run, comparison.score, number, len(wanted)))
        if number % len(plan.names) == 0 and not is_judged:  # all of one seed
            on_event(Judging())
            comparison, is_judged = judge(folder, comparison, plan.metric), True
            write_folder(folder, comparison)
    return comparison


def _began(run: ComparedRun, comparison: Comparison, number: int, total: int) -> RunBegan:
    is_timed = "train.steps" not in comparison.changes
    return RunBegan(run.name, run.seed, number, total, comparison.budget_s, is_timed)


def _train(
    folder: Path,
    comparison: Comparison,
    run: ComparedRun,
    metric: ComparisonMetric,
    on_event: OnComparisonEvent,
) -> ComparedRun:
    """Train or resume one mixer or model; return its results or its error."""
    name = folder_name(run)
    fresh = ComparedRun(name=run.name, seed=run.seed)
    former = find_run(folder, name)
    if former is None or not (former / REPORT_PAGE).exists():
        command = _command(folder, comparison, run, former)
        try:
            run_to_the_end(command, folder / f"{name}.log", lambda line: on_event(RunWent(line)))
        except KeyboardInterrupt:
            raise KeyboardInterrupt(
                f"stopped while {run.name} was trained; what is done is kept. Go on with the same command "
                f"and --output {shlex.quote(str(folder.parent))} --name {shlex.quote(folder.name)}"
            ) from None
        except CommandError as failure:
            return fresh.model_copy(update={"error": str(failure)})
    found = find_run(folder, name)
    assert found is not None, "a training that succeeded without a run directory"
    try:
        figures = measure_run(found, metric)
    except VitrailError as error:
        return fresh.model_copy(update={"folder": found.name, "error": str(error)})
    return fresh.model_copy(update={"folder": found.name, "figures": figures})


def _command(folder: Path, comparison: Comparison, run: ComparedRun, former: Path | None) -> list[str]:
    """Return the command that starts a training, or resumes a stopped one."""
    vitrail = [sys.executable, "-m", "vitrail", "train"]
    if former is not None:
        return [*vitrail, "--resume", str(former)]
    field = "model.mixer" if comparison.kind == "mixer" else "model.name"
    changes = {**comparison.changes, field: run.name}
    assignments = [
        part for path, value in changes.items() for part in ("--set", f"{path}={json.dumps(value)}")
    ]
    # A number of steps takes precedence over the time, which then limits nothing.
    budget = [] if "train.steps" in changes else ["--budget", f"{comparison.budget_s:.3f}s"]
    where = ["--seed", str(run.seed), "--output", str(folder), "--name", folder_name(run)]
    return [*vitrail, comparison.data, *budget, *where, *assignments]
