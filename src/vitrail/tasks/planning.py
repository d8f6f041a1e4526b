"""The number of steps that fit into a wall-clock budget, from a few measured steps."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import NamedTuple

from vitrail.core.duration import format_duration
from vitrail.data.sampling import steps_of_epoch
from vitrail.data.stream import Preparable
from vitrail.tasks.choosing import Choice
from vitrail.tasks.contract import Parts
from vitrail.train.budget import calibrate, steps_for_budget
from vitrail.train.objective import Settling
from vitrail.train.processes import Processes
from vitrail.train.settings import Experiment

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


class Plan(NamedTuple):
    """An experiment with a number of steps."""

    experiment: Experiment
    """Including steps and budget."""
    choice: Choice
    ends_at: float | None
    """Deadline of the last step on ``time.monotonic``, if there is one."""


def plan_steps(experiment: Experiment, parts: Parts, budget: Budget, processes: Processes) -> Plan:
    """Measure a few steps and plan as many as the budget allows.

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
    settings = experiment.train
    per_epoch = steps_of_epoch(parts.train, settings.batch_size, settings.seed)
    scored = len(parts.test)
    if isinstance(parts.final_objective, Settling) and parts.validation is not None:
        scored += len(parts.validation)
    tests = per_epoch * scored / len(parts.train)
    evaluation_s = parts.evaluation_share * times.step_s * tests
    ends_at = budget.started + budget.seconds - REPORT_S - evaluation_s
    pauses_s = times.validation_s * settings.validations
    steps = processes.from_first(
        lambda: steps_for_budget(ends_at - time.monotonic() - pauses_s, times.step_s, 0.0)
    )
    fitted = min(steps, int(parts.max_epochs * per_epoch) + 1)
    return Plan(
        experiment.model_copy(
            update={"train": settings.model_copy(update={"steps": fitted}), "budget_s": budget.seconds}
        ),
        Choice(
            "train.steps",
            str(fitted),
            _reason(fitted / per_epoch, settings.batch_size / times.step_s, parts.unit, budget),
        ),
        ends_at=ends_at if fitted == steps else None,
    )


def _reason(epochs: float, rate: float, unit: str, budget: Budget) -> str:
    few = "" if epochs >= FEW_EPOCHS else ", too few to learn much: give a longer budget"
    return f"{budget} at {rate:.0f} {unit}/s, less start and report: {epochs:.1f} epochs{few}"
