"""Before training: open and check the data, choose the experiment, plan the steps."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from vitrail.core.duration import format_duration
from vitrail.core.errors import ConfigError, DataError
from vitrail.core.sealed import read_sealed
from vitrail.data.findings import OF_TRAINING, Verdict, number_of
from vitrail.data.settings import DataSettings
from vitrail.data.stream import Preparable, SampleSource, steps_of_epoch
from vitrail.engines.loading import load_once
from vitrail.models.cost import count_model
from vitrail.tasks.accelerator import COMPILED_FROM_S, choose_compiled, divide_steps
from vitrail.tasks.contract import ModelRequest, Parts, Settled, Task
from vitrail.tasks.registry import read_experiment, task_of, task_of_source
from vitrail.tasks.request import Request, read_asked
from vitrail.train.budget import MIN_STEPS, Deadline, StepTimes, calibrate, steps_for_budget
from vitrail.train.events import ignore
from vitrail.train.machine import measure_matrix_products
from vitrail.train.objective import Settling
from vitrail.train.processes import Processes
from vitrail.train.run import Choice
from vitrail.train.settings import Experiment, TrainSettings


class Checking(NamedTuple):
    """The doctor is at work."""

    done: int
    """Images seen."""
    total: int


class Checked(NamedTuple):
    """The doctor has finished; the choices follow."""

    verdict: Verdict


class Prepared(NamedTuple):
    """Everything that is decided before the first step."""

    task: Task
    parts: Parts
    """Data without unusable samples, objective, untrained model."""
    verdict: Verdict
    experiment: Experiment
    """The resolved settings."""
    choices: tuple[Choice, ...]
    """What was chosen, by whom and why."""
    deadline: Deadline | None = None
    """Keeps the budget; None if the number of steps does not depend on it."""


OnCheck = Callable[[Checking | Checked], None]


def prepare(request: Request, processes: Processes, on_check: OnCheck = ignore) -> Prepared:
    """Open and check the data, and choose every setting of the experiment.

    With several processes the first one decides for all.

    Args:
        on_check: called while the data is checked and with the verdict, before the choices are made.

    Raises:
        DataError: the data cannot be used.
        ConfigError: a name or a value is wrong, or the budget is too short for one step.
    """
    budget = Budget(request.budget_s, started=time.monotonic() - request.spent_s)
    request.check_fresh()
    load_once.cache_clear()  # of an earlier training
    source = str(request.source)
    if request.config is not None:
        stored = _stored_experiment(Path(request.config), source, request.settings)
        task = task_of(stored)
        repeated = Choice("everything", str(request.config), "the settings in this file")
        dataset, verdict = open_checked(task, stored.data, processes, on_check)
        experiment, files = processes.from_first(lambda: task.settle(stored, dataset))
        parts = task.assemble(experiment, dataset, files)
        return Prepared(task, parts, verdict, experiment, (repeated, *request.choices()))
    task = task_of_source(source, request.settings)
    asked: Experiment = read_asked(task, request.settings)
    data = asked.data.model_copy(update={"source": source})
    dataset, verdict = open_checked(task, data, processes, on_check)
    model = ModelRequest(request.settings)
    settled, chosen = processes.from_first(lambda: _choose(task, dataset, asked, model))
    experiment, is_planned = settled.experiment, not asked.train.is_given("steps")
    if is_planned:
        check_cost(experiment, budget, processes)
    parts, deadline = task.assemble(experiment, dataset, settled.files), None
    if (
        processes.device.type == "cuda"
        and processes.world_size == 1
        and not asked.train.is_given("accumulate")
    ):
        experiment, further = divide_steps(experiment, parts, processes)
        chosen += further
    if is_planned:
        experiment, further, deadline = plan_steps(experiment, parts, budget, processes, asked.train)
        chosen += further
    settings = experiment.train
    epochs = settings.steps / steps_of_epoch(parts.train, settings.batch_size, settings.seed)
    experiment, parts, further = task.choose_for_epochs(experiment, asked, parts, epochs)
    kept = [choice for choice in (*chosen, *further) if choice.setting not in request.settings]
    return Prepared(task, parts, verdict, experiment, (*kept, *request.choices()), deadline)


def open_checked(
    task: Task,
    data: DataSettings,
    processes: Processes,
    on_check: OnCheck = ignore,
    *,
    to_score: bool = False,
) -> tuple[Any, Verdict]:
    """Open a data set, check it in the first process and leave out unusable samples, but not of benchmarks.

    Args:
        to_score: whether it is opened to score a model, so that nothing need be there to train on.

    Raises:
        DataError: the data cannot be opened, or the doctor found an error.
    """
    dataset = task.open_to_score(data) if to_score else task.open(data)
    if to_score and dataset.is_published:
        return dataset, Verdict(dataset.source, (), {})
    verdict = processes.from_first(
        lambda: task.check(dataset, lambda done, total: on_check(Checking(done, total)))
    )
    errors = [found for found in verdict.of("error") if not (to_score and found.check in OF_TRAINING)]
    if errors:
        first = errors[0]
        raise DataError(
            f"{data.source} cannot be used: {first.message}",
            expected="data in which the doctor finds no error",
            remedy=f"{first.remedy}. For everything that was found, run: vitrail check {data.source}",
        )
    on_check(Checked(verdict))
    return dataset.without(verdict.exclude), verdict


def _stored_experiment(config: Path, source: str, settings: Mapping[str, Any]) -> Experiment:
    """Return an earlier run's experiment, including its corrected number of steps unless set anew."""
    tree = read_sealed(
        config,
        expected="the config.json of a run directory",
        remedy="Name the file that an earlier run wrote, such as runs/NAME/config.json",
        error=ConfigError,
        is_verified=False,  # settings of a new run may be edited
    )
    changes = {"data.source": source, **settings}
    if "train.steps" in settings:
        changes = {"train.replans": (), **changes}
    return read_experiment(tree).with_changes(changes)


def _choose(task: Task, dataset: Any, asked: Experiment, model: ModelRequest) -> tuple[Settled, list[Choice]]:
    if len(dataset.train) < task.fewest:
        raise DataError(
            f"{dataset.source} has {number_of(len(dataset.train), task.samples[:-1])} to train on",
            expected=f"a training split of {task.contents}, {task.fewest} or more",
            remedy="Name the folder that holds the training split too, or rename a file named as a test",
        )
    experiment, choices = task.choose(dataset, asked, model)
    chosen = experiment.model_copy(update={"model": model.apply(experiment.model)})
    return task.settle(chosen.with_given(asked), dataset), choices


DEFAULT_BUDGET_S = 600.0
REPORT_S = 5.0  # plots and explanations took 3 s on 2 cores, and the imports
CALIBRATION_SHARE = 0.03  # of the budget
VALIDATION_SHARE = 0.2  # of the budget, for all validations
OVERRUN_SHARE, OVERRUN_S = 0.03, 5.0  # of the budget, or so long: what a slower machine may take beyond it
TRAIN_EFFICIENCY, BEST_EFFICIENCY = 0.6, 0.8  # of the rate of matrix products: a small ViT's, and no more
BACKWARD_AND_FORWARD = 3  # times the operations of a forward pass
PROBED_SAMPLES, PROBING_S = 16, 0.5  # of the test split, whose loading is timed


@dataclass(frozen=True)
class Budget:
    """Wall-clock time for everything, from the start of the command to the report."""

    given_s: float | None
    """The user's budget, if any."""
    started: float
    """Start of the budget, on ``time.monotonic``."""

    @property
    def seconds(self) -> float:
        """Ten minutes by default."""
        return self.given_s or DEFAULT_BUDGET_S

    @property
    def ends_at(self) -> float:
        return self.started + self.seconds

    def __str__(self) -> str:
        return format_duration(self.seconds) + ("" if self.given_s else ", the default budget")


def check_cost(experiment: Experiment, budget: Budget, processes: Processes) -> None:
    """Refuse a model that is too large for the budget before it is built.

    A step's time is estimated from the operations of the model and the measured rate of matrix products.

    Raises:
        ConfigError: even at that rate there is no time for a few steps.
    """
    config: Any = experiment.model
    if getattr(config, "encoder_frozen", False):  # its features are computed once, not in every step
        return
    inputs = config.example_inputs(1)
    num_units = 1 if inputs[0].is_floating_point() else inputs[0].shape[-1]  # images, or tokens
    macs = count_model(config).macs / num_units * experiment.train.batch_size
    flop = 2 * BACKWARD_AND_FORWARD * macs / processes.world_size

    def check() -> None:
        rate = measure_matrix_products(processes.device, experiment.train.precision)
        left_s = budget.ends_at - time.monotonic() - REPORT_S
        if left_s * BEST_EFFICIENCY * rate < MIN_STEPS * flop:
            uses = {"start": time.monotonic() - budget.started, "report": REPORT_S}
            step_s = flop / (TRAIN_EFFICIENCY * rate)
            steps_for_budget(budget.seconds, uses, step_s, smaller=_smaller(experiment))

    processes.from_first(check)


def plan_steps(
    experiment: Experiment, parts: Parts, budget: Budget, processes: Processes, asked: TrainSettings
) -> tuple[Experiment, list[Choice], Deadline | None]:
    """Measure a few steps and plan as many as the budget allows; also return the deadline, if there is one.

    Args:
        experiment: everything but the number of steps.
        parts: not modified, except for filling the pixel cache.
        budget: of the whole run.
        asked: the user's settings.

    Raises:
        ConfigError: the budget is too short.
    """
    num_threads, may_reduce = torch.get_num_threads(), not asked.is_given("validations")

    def measure(tried: Experiment) -> Fit:
        return fit_steps(tried, parts, budget, processes, may_reduce)

    fit, choices = measure(experiment), list[Choice]()
    if (
        processes.device.type == "cuda"
        and budget.seconds >= COMPILED_FROM_S
        and not asked.is_given("compile")
    ):
        experiment, fit, choice = choose_compiled(experiment, fit, measure)
        choices.append(choice)
    settings, task = experiment.train, task_of(experiment)
    per_epoch = steps_of_epoch(parts.train, settings.batch_size, settings.seed)
    steps = min(fit.steps, int(task.max_epochs * per_epoch) + 1)
    epochs, rate = steps / per_epoch, settings.batch_size / fit.times.step_s
    reason = f"{epochs:.1f} epochs fit into {budget}, at {rate:.0f} {task.unit}/s"
    if steps < fit.steps:
        reason = f"{epochs:.0f} epochs, the most by default; {fit.steps} steps would fit into {budget}"
    if torch.get_num_threads() < num_threads:
        reason += "; with one thread, as other programs have the cores"
    choices.append(Choice("train.steps", str(steps), reason))
    if fit.validations < settings.validations:
        reason = f"each takes about {format_duration(fit.times.validation_s)}: a fifth of the budget, or one"
        choices.append(Choice("train.validations", str(fit.validations), reason))
    train = settings.model_copy(update={"steps": steps, "validations": fit.validations})
    planned = experiment.model_copy(update={"train": train, "budget_s": budget.seconds})
    return planned, choices, fit.deadline if steps == fit.steps else None


class Fit(NamedTuple):
    """What fits into a budget."""

    steps: int
    validations: int
    times: StepTimes
    deadline: Deadline
    """Keeps the budget."""


def fit_steps(
    experiment: Experiment, parts: Parts, budget: Budget, processes: Processes, may_reduce: bool = False
) -> Fit:
    """Measure a few steps, and return how many fit into the budget.

    Args:
        may_reduce: whether fewer validations may be planned.

    Raises:
        ConfigError: the budget is too short.
    """
    if isinstance(parts.train, Preparable):
        parts.train.prepare()
    settings, task = experiment.train, task_of(experiment)
    times = calibrate(
        parts.objective,
        parts.model,
        parts.train,
        parts.validation,
        experiment=experiment,
        processes=processes,
        seconds=CALIBRATION_SHARE * budget.seconds,
        longest_s=(budget.ends_at - time.monotonic()) / MIN_STEPS,
        evaluation_share=task.evaluation_share,
    )
    scored = len(parts.test)
    if isinstance(parts.final_objective, Settling) and parts.validation:
        scored += len(parts.validation)
    per_epoch = steps_of_epoch(parts.train, settings.batch_size, settings.seed)
    # Scores are in float32, of half the rate; decoding, which multiplies little at a time, is no slower.
    slower = 2 if settings.precision == "bfloat16" and task.evaluation_share < 1 else 1
    scoring_steps = slower * task.evaluation_share * per_epoch * scored / len(parts.train)
    loading_s = len(parts.test) * typical_loading_s(parts.test) / max(1, settings.num_workers)

    def after_s(step_s: float) -> float:
        return scoring_steps * step_s + (REPORT_S + loading_s) * max(1.0, step_s / times.step_s)

    # Should the machine become half as fast after the last step, the run must not overrun by more.
    tolerance_s = max(OVERRUN_S, OVERRUN_SHARE * budget.seconds)
    least_s = 2 * after_s(times.step_s) - tolerance_s
    deadline = Deadline(
        budget.ends_at,
        after_s=lambda step_s: max(after_s(step_s), least_s),
        pause_s=times.validation_s,
    )
    validations = settings.validations
    if may_reduce and validations:
        most = VALIDATION_SHARE * budget.seconds / max(times.validation_s, 1e-6)
        validations = min(validations, max(1, int(most)))
    uses = {
        "start": time.monotonic() - budget.started + times.start_s,
        number_of(validations, "validation"): validations * times.validation_s,
        "scores and report": max(after_s(times.step_s), least_s),
    }
    plan = partial(steps_for_budget, budget.seconds, uses, times.step_s, smaller=_smaller(experiment))
    steps = processes.from_first(plan)
    return Fit(steps, validations, times, deadline)


def _smaller(experiment: Experiment) -> str:
    """Name the settings that make a step shorter."""
    has_images = hasattr(experiment.data, "image_size")
    return "model, train.batch_size or data.image_size" if has_images else "model or train.batch_size"


def typical_loading_s(source: SampleSource) -> float:
    """Measure how long one sample takes to load, such as an image that no cache holds; the median of some.

    The first one is not measured: with it, all texts may be encoded.
    """
    if len(source):
        source.load(0, None)
    moments = [time.monotonic()]
    for index in range(0, len(source), max(1, len(source) // PROBED_SAMPLES)):
        source.load(index, None)
        moments.append(time.monotonic())
        if moments[-1] > moments[0] + PROBING_S:
            break
    return statistics.median([after - before for before, after in itertools.pairwise(moments)] or [0.0])
