"""Before training: open and check the data, choose the experiment, plan the steps."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitrail.core.duration import format_duration
from vitrail.core.errors import ConfigError, DataError
from vitrail.data.findings import Verdict
from vitrail.data.settings import DataSettings
from vitrail.data.stream import Preparable, steps_of_epoch
from vitrail.models import MODELS
from vitrail.tasks.contract import Choice, ModelRequest, Parts, Settled, Task
from vitrail.tasks.registry import read_experiment, task_of, task_of_source
from vitrail.tasks.request import Request, read_asked
from vitrail.train.budget import calibrate, steps_for_budget
from vitrail.train.objective import Settling
from vitrail.train.processes import Processes
from vitrail.train.settings import Experiment


@dataclass(frozen=True)
class Prepared:
    """Everything that is decided before the first step."""

    task: Task
    parts: Parts
    """Data without unusable samples, objective, untrained model."""
    verdict: Verdict
    experiment: Experiment
    """The resolved settings."""
    choices: tuple[Choice, ...]
    """What was chosen, by whom and why."""
    ends_at: float | None = None
    """Deadline of the last step on ``time.monotonic``; None if the number of steps was given."""


def prepare(
    request: Request, processes: Processes, *, on_checked: Callable[[Verdict], None] = lambda verdict: None
) -> Prepared:
    """Open and check the data, and choose every setting of the experiment.

    With several processes the first one decides for all.

    Args:
        on_checked: called with the verdict, before the choices are made.

    Raises:
        DataError: the data cannot be used.
        ConfigError: a name or a value is wrong, or the budget is too short for one step.
    """
    budget = Budget(request.budget_s, started=time.monotonic())
    request.check_fresh()
    source = str(request.source)
    if request.config is not None:
        stored = _stored_experiment(Path(request.config), source, request.settings)
        task = task_of(stored)
        repeated = Choice("everything", str(request.config), "the settings of an earlier run")
        dataset, verdict = open_as(stored, processes)
        on_checked(verdict)
        task.check_benchmark(dataset)
        experiment, files = processes.from_first(lambda: task.settle(stored, dataset))
        parts = task.assemble(experiment, dataset, files)
        return Prepared(task, parts, verdict, experiment, (repeated, *request.choices()))
    task = task_of_source(source, request.settings.get("model.name"))
    asked: Experiment = read_asked(task, request.settings)
    data = asked.data.model_copy(update={"source": source})
    dataset, verdict = open_checked(task, data, processes)
    on_checked(verdict)
    task.check_benchmark(dataset)
    model = ModelRequest(request.settings)
    settled, chosen = processes.from_first(lambda: _choose(task, dataset, asked, model, budget.seconds))
    experiment = settled.experiment
    kept = [choice for choice in chosen if choice.setting not in request.settings]
    choices = (*kept, *request.choices())
    parts = task.assemble(experiment, dataset, settled.files)
    if asked.train.is_given("steps"):
        return Prepared(task, parts, verdict, experiment, choices)
    planned, choice, ends_at = plan_steps(experiment, parts, budget, processes)
    return Prepared(task, parts, verdict, planned, (*choices, choice), ends_at=ends_at)


def open_as(experiment: Experiment, processes: Processes) -> tuple[Any, Verdict]:
    """Open the data of an experiment, split accordingly.

    Raises:
        DataError: as ``open_checked``.
    """
    return open_checked(task_of(experiment), experiment.data, processes)


def open_checked(task: Task, data: DataSettings, processes: Processes) -> tuple[Any, Verdict]:
    """Open a data set, check it in the first process and leave out unusable samples.

    Raises:
        DataError: the data cannot be opened, or the doctor found an error.
    """
    dataset = task.open(data)
    verdict = processes.from_first(lambda: task.check(dataset))
    if not verdict.usable:
        first = verdict.of("error")[0]
        raise DataError(
            f"{data.source} cannot be used: {first.message}",
            expected="data in which the doctor finds no error",
            remedy=f"{first.remedy}. For everything that was found, run: vitrail check {data.source}",
        )
    return dataset.without(verdict.exclude), verdict


def _stored_experiment(config: Path, source: str, settings: Mapping[str, Any]) -> Experiment:
    """Return an earlier run's experiment, including its corrected number of steps unless set anew."""
    try:
        tree = json.loads(config.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{config} cannot be read as settings: {error}",
            expected="the config.json of a run directory",
            remedy="Name the file that an earlier run wrote, such as runs/NAME/config.json",
        ) from None
    changes = {"data.source": source, **settings}
    if "train.steps" in settings:
        changes = {"train.replans": (), **changes}
    return read_experiment(tree).with_changes(changes)


def _choose(
    task: Task, dataset: Any, asked: Experiment, model: ModelRequest, budget_s: float
) -> tuple[Settled, list[Choice]]:
    _check_model(task, dataset, model.name)
    experiment, choices = task.choose(dataset, asked, model, budget_s)
    chosen = experiment.model_copy(update={"model": model.apply(experiment.model)})
    return task.settle(chosen.with_given(asked), dataset), choices


def _check_model(task: Task, dataset: Any, name: str | None) -> None:
    config = None if name is None else MODELS.get(name)
    if config is None or isinstance(config, task.models):
        return
    others = [other for other, each in MODELS.items() if isinstance(each, task.models)]
    raise ConfigError(
        f"{name} does not learn from {dataset.source}, which holds {task.contents}",
        expected=f"a model for them, such as {', '.join(others[:3])}",
        remedy="Leave --model out, and one is chosen; vitrail models lists all",
    )


DEFAULT_BUDGET_S = 600.0
REPORT_S = 8.0  # plots and explanations took 3 s on 2 cores; twice that, and the imports
FEW_EPOCHS = 3.0
CALIBRATION_SHARE = 0.03  # of the budget


@dataclass(frozen=True)
class Budget:
    """Wall-clock time for everything, from opening the data to the report."""

    given_s: float | None
    """The user's budget, if any."""
    started: float
    """Start of the budget, on ``time.monotonic``."""

    @property
    def seconds(self) -> float:
        """Ten minutes by default."""
        return self.given_s or DEFAULT_BUDGET_S

    def __str__(self) -> str:
        return format_duration(self.seconds) + ("" if self.given_s else ", the default budget")


def plan_steps(
    experiment: Experiment, parts: Parts, budget: Budget, processes: Processes
) -> tuple[Experiment, Choice, float | None]:
    """Measure a few steps and plan as many as the budget allows; also return the deadline, if there is one.

    Args:
        experiment: everything but the number of steps.
        parts: not modified, except for filling the pixel cache.
        budget: of the whole run.

    Raises:
        ConfigError: the budget is too short for one step.
    """
    if isinstance(parts.train, Preparable):
        parts.train.prepare()
    times = calibrate(
        parts.objective,
        parts.model,
        parts.train,
        parts.validation,
        experiment=experiment,
        processes=processes,
        seconds=CALIBRATION_SHARE * budget.seconds,
    )
    settings, task = experiment.train, task_of(experiment)
    per_epoch = steps_of_epoch(parts.train, settings.batch_size, settings.seed)
    scored = len(parts.test)
    if isinstance(parts.final_objective, Settling) and parts.validation is not None:
        scored += len(parts.validation)
    tests = per_epoch * scored / len(parts.train)
    evaluation_s = task.evaluation_share * times.step_s * tests
    ends_at = budget.started + budget.seconds - REPORT_S - evaluation_s
    pauses_s = times.validation_s * settings.validations
    steps = processes.from_first(
        lambda: steps_for_budget(ends_at - time.monotonic() - pauses_s, times.step_s, 0.0)
    )
    fitted = min(steps, int(task.max_epochs * per_epoch) + 1)
    epochs, rate = fitted / per_epoch, settings.batch_size / times.step_s
    few = "" if epochs >= FEW_EPOCHS else ", too few to learn much: give a longer budget"
    reason = f"{budget} at {rate:.0f} {task.unit}/s, less start and report: {epochs:.1f} epochs{few}"
    train = settings.model_copy(update={"steps": fitted})
    planned = experiment.model_copy(update={"train": train, "budget_s": budget.seconds})
    return planned, Choice("train.steps", str(fitted), reason), ends_at if fitted == steps else None
