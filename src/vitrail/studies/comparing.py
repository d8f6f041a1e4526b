"""Train several mixers or models with the same budget each, and compare them.

Each runs as its own ``vitrail train`` process: its peak memory is its own, it cannot disturb the next one,
and it leaves an ordinary run directory.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any, Literal, NamedTuple

from vitrail.core.config import check_place
from vitrail.core.durable import atomic_write
from vitrail.core.duration import format_duration
from vitrail.core.errors import CheckpointError, ConfigError, VitrailError
from vitrail.models import MODELS
from vitrail.nn.mixers import MIXERS
from vitrail.studies.command import CommandError, run_to_the_end
from vitrail.studies.comparison import ComparedRun, Comparison, concluded
from vitrail.studies.comparison_page import write_comparison
from vitrail.studies.judging import judge, measure_run, stand_all
from vitrail.tasks.contract import ComparisonMetric, Task
from vitrail.tasks.preparing import DEFAULT_BUDGET_S, REPORT_S
from vitrail.tasks.registry import TASKS, task_of_source
from vitrail.tasks.request import DEFAULT_OUTPUT, read_asked
from vitrail.tasks.training import REPORT_PAGE
from vitrail.train.run import dated_name, find_run


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


class RunEnded(NamedTuple):
    """A training is finished, has failed, or was finished before."""

    run: ComparedRun
    score: str
    """Name of the score in ``studies.comparison.SCORES``."""
    number: int
    """Runs that have ended."""
    total: int


ComparisonEvent = RunBegan | RunEnded | str
"""A text is the progress of a training, or of the tests after it."""
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
    on_event: OnComparisonEvent = lambda event: None,
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
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError(
            "a comparison was started in several processes",
            expected="one process; it trains one mixer or model after the other",
            remedy="Start vitrail compare without torchrun",
        )
    check_place(source)
    kind, names = _list_contestants(mixers, models)
    listed = list_seeds(seeds, seed)
    settings = dict(changes or {})
    task, metric = _find_metric(
        str(source), {**settings, "model.name": names[0]} if kind == "model" else settings
    )
    _check(task, kind, names, settings)
    if kind == "mixer":
        settings = ({} if "model.name" in settings else {**metric.shared_settings}) | settings
    asked = Comparison(
        kind=kind,
        data=str(source),
        score=metric.score,
        budget_s=DEFAULT_BUDGET_S if budget_s is None else budget_s,
        changes=settings,
    )
    if "train.steps" not in settings and asked.budget_s <= REPORT_S:
        raise ConfigError(
            f"the budget of each run is {format_duration(max(0.0, asked.budget_s))}",
            expected=f"more than the {REPORT_S:g} s that are set aside for the report of a run",
            remedy="Give a budget such as 3m, or a number of steps with --set train.steps=100",
        )
    data = read_asked(task, settings).data
    folder = Path(output) / (name or dated_name(asked.data, "comparison"))
    comparison = _open_comparison(folder, asked, task)
    known = {(run.name, run.seed) for run in comparison.runs}
    added = [ComparedRun(name=each, seed=own) for own in listed for each in names if (each, own) not in known]
    comparison = concluded(comparison, runs=(*comparison.runs, *added))  # by today's rules, whoever stored it
    if not (folder / COMPARISON_FILE).exists():
        task.open(data.model_copy(update={"source": asked.data}))  # so that its errors come once
    folder.mkdir(parents=True, exist_ok=True)
    _write_folder(folder, comparison)
    wanted = [run for each in listed for run in comparison.runs if run.seed == each and run.name in names]
    return Compared(folder, _train_all(folder, comparison, wanted, len(names), metric, on_event))


def _train_all(
    folder: Path,
    comparison: Comparison,
    wanted: Sequence[ComparedRun],
    runs_per_seed: int,
    metric: ComparisonMetric,
    on_event: OnComparisonEvent,
) -> Comparison:
    """Train what is not finished, seed by seed, and test the differences after each seed."""
    is_judged = bool(comparison.pairs)
    is_timed = "train.steps" not in comparison.changes
    for number, former in enumerate(wanted, start=1):
        run = former
        if former.figures is None:
            is_judged = False
            on_event(RunBegan(former.name, former.seed, number, len(wanted), comparison.budget_s, is_timed))
            run = _train(folder, comparison, former, metric, on_event)
            runs = tuple(run if each == former else each for each in comparison.runs)
            comparison = stand_all(comparison.model_copy(update={"runs": runs}))
            _write_folder(folder, comparison)
        on_event(RunEnded(run, comparison.score, number, len(wanted)))
        if number % runs_per_seed == 0 and not is_judged:
            on_event("testing the differences")
            comparison, is_judged = judge(folder, comparison, metric), True
            _write_folder(folder, comparison)
    return comparison


def _train(
    folder: Path,
    comparison: Comparison,
    run: ComparedRun,
    metric: ComparisonMetric,
    on_event: OnComparisonEvent,
) -> ComparedRun:
    """Train or resume one mixer or model; return its results or its error."""
    name = _folder_name(run)
    fresh = ComparedRun(name=run.name, seed=run.seed)
    former = find_run(folder, name)
    if former is None or not (former / REPORT_PAGE).exists():
        command = _command(folder, comparison, run, former)
        try:
            run_to_the_end(command, folder / f"{name}.log", on_event)
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
    command = [*vitrail, comparison.data, "--seed", str(run.seed), "--output", str(folder)]
    command += ["--name", _folder_name(run)]
    if "train.steps" not in changes:  # which take precedence over the time, which then limits nothing
        command += ["--budget", f"{comparison.budget_s:.3f}s"]
    for path, value in changes.items():
        command += ["--set", f"{path}={json.dumps(value)}"]
    return command


def _list_contestants(
    mixers: Sequence[str] | None, models: Sequence[str] | None
) -> tuple[Literal["mixer", "model"], list[str]]:
    """Return what differs between the runs, and the names."""
    if mixers and models:
        raise ConfigError(
            "mixers and models are both to be compared",
            expected="one or the other",
            remedy="Compare mixers of one model with --set model.name=NAME, or models with --models alone",
        )
    kind: Literal["mixer", "model"] = "mixer" if models is None else "model"
    known: Mapping[str, Any] = MIXERS if models is None else MODELS
    names = list((["all"] if mixers is None else mixers) if models is None else models)
    if not names:
        raise ConfigError(
            f"no {kind} was named",
            expected=f"names of {kind}s with commas between them",
            remedy=f"Name two or more, or leave out --{kind}s for all mixers",
        )
    if kind == "mixer" and names == ["all"]:
        names = sorted(MIXERS, key=lambda name: (name != "attention", name))
    for name in names:
        known[name]
    _refuse_repeated(names, f"the {kind}", "each once")
    return kind, names


def list_seeds(seeds: int | Sequence[int] | None, first: int | None) -> tuple[int, ...]:
    """Return the seeds that each mixer or model is trained with.

    Args:
        seeds: how many, or which.
        first: the first seed, where ``seeds`` is a number (default: 0).

    Raises:
        ConfigError: there is none, one is negative or there twice, or both name seeds.

    >>> list_seeds(3, 5), list_seeds([4, 2], None), list_seeds(None, None)
    ((5, 6, 7), (4, 2), (0,))
    """
    if seeds is None or isinstance(seeds, int):
        number, start = 1 if seeds is None else seeds, first or 0
        listed = tuple(range(start, start + number))
    elif first is not None:
        raise ConfigError(
            f"--seed {first} and the seeds {', '.join(map(str, seeds))} are both given",
            expected="a list of seeds, or their number and the first of them",
            remedy="Leave out --seed",
        )
    else:
        listed = tuple(seeds)
    if not listed or min(listed) < 0:
        raise ConfigError(
            f"the seed {min(listed)} is negative" if listed else "no seed was asked for",
            expected="one or more seeds, such as 3 for the seeds 0, 1 and 2, or a list such as 1,5,9",
            remedy="Give --seeds 3",
        )
    _refuse_repeated(listed, "the seed", "each once: the same seed trains the same model again")
    return listed


def _find_metric(source: str, settings: Mapping[str, Any]) -> tuple[Task, ComparisonMetric]:
    task = task_of_source(source, settings)
    metric = task.comparison_metric(source)
    if metric is None:
        comparable = sorted(each.name for each in TASKS.values() if each.comparison_metric(source))
        raise ConfigError(
            f"models for {task.name} cannot be compared yet, and {source} was to be learned so",
            expected=f"data for one of {', '.join(comparable)}",
            remedy="Train them one by one with vitrail train",
        )
    return task, metric


def _check(task: Task, kind: str, names: Sequence[str], changes: Mapping[str, Any]) -> None:
    """Refuse shared settings of what the runs differ in, and models that do not suit."""
    if differing := sorted({f"model.{'mixer' if kind == 'mixer' else 'name'}", "train.seed"} & set(changes)):
        raise ConfigError(
            f"{differing[0]} is set, and it is what the runs differ in",
            expected=f"other settings, which all {kind}s share",
            remedy="Give --seeds instead" if differing[0] == "train.seed" else f"Leave out {differing[0]}",
        )
    own = sorted(name for name in MODELS if isinstance(MODELS[name], task.models))
    if kind == "model":
        for name in names:
            if name not in own:
                raise ConfigError(
                    f"the model {name} is not for {task.name}",
                    expected=f"models such as {', '.join(own[:3])}",
                    remedy="Name models of one task; vitrail models lists them by family",
                )
        return
    choosable = [name for name in own if "mixer" in type(MODELS[name]).model_fields]
    if not choosable:
        raise ConfigError(
            f"no model for {task.name} has a mixer that can be chosen",
            expected="--models, with names of whole models",
            remedy=f"Compare models, such as --models {','.join(own[:2])}",
        )
    model = changes.get("model.name")
    if model is not None and model not in choosable:
        MODELS[model]
        small = next((name for name in choosable if name.endswith(("_nano", "_tiny"))), choosable[0])
        raise ConfigError(
            f"the model {model} {'has a mixer of its own' if model in own else f'is not for {task.name}'}",
            expected=f"a model whose mixer can be chosen, such as {small}",
            remedy="Choose another model.name, or compare models with --models",
        )


def _refuse_repeated(values: Sequence[Any], what: str, expected: str) -> None:
    repeated = [value for place, value in enumerate(values) if value in values[:place]]
    if repeated:
        raise ConfigError(
            f"{what} {repeated[0]} is given twice", expected=expected, remedy="Leave out the second one"
        )


COMPARISON_FILE, COMPARISON_PAGE = "comparison.json", "comparison.html"
FOUND = {"runs", "standings", "pairs", "statements"}  # results rather than settings


def _open_comparison(folder: Path, asked: Comparison, task: Task) -> Comparison:
    """Return the comparison that the folder holds, or a new one."""
    path = folder / COMPARISON_FILE
    if not path.exists():
        if folder.exists() and any(folder.iterdir()):
            raise ConfigError(
                f"{folder} exists and holds no comparison",
                expected="a new name, or that of a comparison to go on with",
                remedy="Choose another --name",
            )
        return asked
    try:
        stored = Comparison.from_tree(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{path} cannot be read: {error}",
            expected="the file that this version of vitrail compare wrote",
            remedy="Choose another --name, or remove this folder",
        ) from None
    wanted, found = (value.model_dump(mode="json", exclude=FOUND) for value in (asked, stored))
    for tree in (wanted, found):
        tree["changes"] = _as_read(task, tree["changes"])
    differing = [f"{key} {found[key]!r}, not {wanted[key]!r}" for key in wanted if found[key] != wanted[key]]
    if differing:
        raise ConfigError(
            f"the comparison {folder} was made with {'; '.join(differing)}",
            expected="the same data, budget and settings for all runs of a comparison",
            remedy="Give the same options, or choose another --name",
        )
    return stored


def _as_read(task: Task, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings as the task reads them, all but the model's: 32 as an image size is [32, 32]."""
    tree = read_asked(task, changes).model_dump(mode="json")
    return {
        path: value if path.startswith("model.") else reduce(getitem, path.split("."), tree)
        for path, value in changes.items()
    }


def _write_folder(folder: Path, comparison: Comparison) -> None:
    text = json.dumps(comparison.model_dump(mode="json"), indent=2, ensure_ascii=False) + "\n"
    atomic_write(folder / COMPARISON_FILE, text)
    write_comparison(folder / COMPARISON_PAGE, comparison)


def _folder_name(run: ComparedRun) -> str:
    return f"{run.name}-seed{run.seed}"
