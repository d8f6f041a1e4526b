"""Plan of a comparison: mixers or models, seeds, and checks before any training."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from vitrail.core.duration import format_duration
from vitrail.core.errors import ConfigError
from vitrail.models import MODELS
from vitrail.nn.mixers import MIXERS
from vitrail.studies.comparison import Comparison
from vitrail.tasks.contract import ComparisonMetric, Task
from vitrail.tasks.preparing import DEFAULT_BUDGET_S, REPORT_S
from vitrail.tasks.registry import TASKS, task_of_source
from vitrail.tasks.request import read_asked


class ComparisonPlan(NamedTuple):
    """Everything that is decided before the first training."""

    asked: Comparison
    """Data, budget and settings, without runs."""
    names: list[str]
    """The mixers or models."""
    seeds: tuple[int, ...]
    task: Task
    metric: ComparisonMetric


def plan_comparison(
    source: str,
    *,
    mixers: Sequence[str] | None,
    models: Sequence[str] | None,
    budget_s: float | None,
    changes: Mapping[str, Any],
    seed: int | None,
    seeds: int | Sequence[int] | None,
) -> ComparisonPlan:
    """Check the arguments of ``compare``; model settings that depend on the data are left to the trainings.

    Raises:
        ConfigError: a name is unknown or another task's, a seed is given twice, the budget is too short, or
            a setting is unknown or what the runs differ in.
    """
    _refuse_several_processes()
    kind, names = list_contestants(mixers, models)
    listed = list_seeds(seeds, seed)
    task, metric = _find_metric(source, names[0] if kind == "model" else changes.get("model.name"))
    _check_changes(changes, kind)
    if kind == "model":
        _check_models(names, task)
        shared: dict[str, Any] = {}
    else:
        _check_mixing(changes.get("model.name"), task)
        shared = metric.shared_settings(changes)
    asked = Comparison(
        kind=kind,
        data=source,
        score=metric.score,
        budget_s=DEFAULT_BUDGET_S if budget_s is None else budget_s,
        changes={**shared, **changes},
    )
    _check_budget(asked)
    read_asked(task, asked.changes)
    return ComparisonPlan(asked, names, listed, task, metric)


def check_data(plan: ComparisonPlan) -> None:
    """Open the data once, so that its errors are reported once.

    Raises:
        DataError: it cannot be opened.
    """
    data = read_asked(plan.task, plan.asked.changes).data
    plan.task.open(data.model_copy(update={"source": plan.asked.data}))


def list_contestants(
    mixers: Sequence[str] | None, models: Sequence[str] | None
) -> tuple[Literal["mixer", "model"], list[str]]:
    """Return what differs between the runs, and the names.

    Raises:
        ConfigError: a name is unknown or there twice, there is none, or both are given.
    """
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


def _find_metric(source: str, model: str | None) -> tuple[Task, ComparisonMetric]:
    task = task_of_source(source, model)
    metric = task.comparison_metric(source)
    if metric is None:
        comparable = sorted(
            each.name for each in TASKS.values() if each.comparison_metric(source) is not None
        )
        raise ConfigError(
            f"models for {task.name} cannot be compared yet, and {source} was to be learned so",
            expected=f"data for one of {', '.join(comparable)}",
            remedy="Train them one by one with vitrail train",
        )
    return task, metric


def _check_changes(changes: Mapping[str, Any], kind: str) -> None:
    """Refuse shared settings of what the runs differ in."""
    differing = {"model.mixer" if kind == "mixer" else "model.name", "train.seed"} & set(changes)
    if differing:
        name = min(differing)
        raise ConfigError(
            f"{name} is set, and it is what the runs differ in",
            expected=f"other settings, which all {kind}s share",
            remedy="Give --seeds instead" if name == "train.seed" else f"Leave out {name}",
        )


def _check_models(names: Sequence[str], task: Task) -> None:
    for name in names:
        if not isinstance(MODELS[name], task.models):
            fitting = sorted(other for other in MODELS if isinstance(MODELS[other], task.models))
            raise ConfigError(
                f"the model {name} is not for {task.name}",
                expected=f"models such as {', '.join(fitting[:3])}",
                remedy="Name models of one task; vitrail models lists them by family",
            )


def _check_mixing(model: str | None, task: Task) -> None:
    """Refuse models without an exchangeable mixer."""
    own = [name for name in MODELS if isinstance(MODELS[name], task.models)]
    choosable = sorted(name for name in own if "mixer" in type(MODELS[name]).model_fields)
    if not choosable:
        raise ConfigError(
            f"no model for {task.name} has a mixer that can be chosen",
            expected="--models, with names of whole models",
            remedy=f"Compare models, such as --models {','.join(sorted(own)[:2])}",
        )
    if model is not None:
        MODELS[model]
    if model is not None and model not in choosable:
        raise ConfigError(
            f"the model {model} has a mixer of its own"
            if model in own
            else f"the model {model} is not for {task.name}",
            expected=f"a model whose mixer can be chosen, such as {_smallest(choosable)}",
            remedy="Choose another model.name, or compare models with --models",
        )


def _smallest(names: Sequence[str]) -> str:
    """Return the name that marks a small model."""
    return next((name for name in names if name.endswith(("_nano", "_tiny"))), names[0])


def _check_budget(asked: Comparison) -> None:
    if "train.steps" not in asked.changes and asked.budget_s <= REPORT_S:
        raise ConfigError(
            f"the budget of each run is {format_duration(max(0.0, asked.budget_s))}",
            expected=f"more than the {REPORT_S:g} s that are set aside for the report of a run",
            remedy="Give a budget such as 3m, or a number of steps with --set train.steps=100",
        )


def _refuse_repeated(values: Sequence[Any], what: str, expected: str) -> None:
    repeated = [value for place, value in enumerate(values) if value in values[:place]]
    if repeated:
        raise ConfigError(
            f"{what} {repeated[0]} is given twice", expected=expected, remedy="Leave out the second one"
        )


def _refuse_several_processes() -> None:
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError(
            "a comparison was started in several processes",
            expected="one process; it trains one mixer or model after the other",
            remedy="Start vitrail compare without torchrun",
        )
