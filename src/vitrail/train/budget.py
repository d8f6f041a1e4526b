"""A wall-clock budget as a number of steps: calibrated before training, corrected during it."""

from __future__ import annotations

import copy
import math
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import psutil
import torch
from torch import nn

from vitrail.core.duration import format_duration
from vitrail.core.errors import ConfigError
from vitrail.data.findings import number_of
from vitrail.data.stream import SampleSource, steps_of_epoch
from vitrail.train.machine import choose_threads, count_cores
from vitrail.train.objective import Objective
from vitrail.train.processes import Processes
from vitrail.train.run import Run
from vitrail.train.schedule import planned_steps, progress_at
from vitrail.train.settings import Experiment, Replan, TrainSettings
from vitrail.train.step import TrainStep

Clock = Callable[[], float]

_WARM_STEPS = 3  # the first steps allocate, compile and fill caches
_FEWEST_STEPS, _MOST_STEPS = 3, 30
_FEWEST_SAMPLES = 2  # batch normalisation and contrasts need two
_LONG_S = 1.0  # of a step, whose allocations are then negligible
_REVIEW_SHARE, _SHORTEST_REVIEW_S = 0.02, 0.5  # of the time left, from one review to the next
_TOLERANCE = 0.02  # a smaller deviation than this is noise
_MAY_EXTEND_BEFORE = 0.95  # of the progress; what a load that has gone leaves later is little
_LARGEST_CHANGE = 2.0  # of the steps left, by one review: a second held up by another program says little
FEWEST_PLANNED = 100  # steps in which a small model learns something
BUSY = 1.5  # of the load of a core, from which on times say little of the machine
MIN_STEPS = 10  # with fewer, the warm-up is one step, and a budget is refused
_SLACK = 0.1  # share of the time left that must be unused before the plan is lengthened, or 4 % of all


class StepTimes(NamedTuple):
    """Step times measured by calibration."""

    start_s: float
    """Time until the first step was done, including worker start and compilation."""
    step_s: float
    """Median time of a later step, including data loading."""
    validation_s: float
    """Time of one validation; 0 without validation data."""


def calibrate(
    objective: Objective,
    model: nn.Module,
    train: SampleSource,
    validation: SampleSource | None,
    *,
    experiment: Experiment,
    processes: Processes,
    seconds: float = 10.0,
    longest_s: float = math.inf,
    evaluation_share: float = 0.4,
    clock: Clock = time.monotonic,
) -> StepTimes:
    """Time a few training steps on a copy of the model, or parts of a step where whole ones take too long.

    Every process calls this; all return the first one's measurements.

    Args:
        experiment: batch size, precision, workers; the number of steps does not matter.
        seconds: approximate measuring time after the first steps.
        longest_s: step time beyond which more precision is of no use.
        evaluation_share: time of a validation per sample, as a fraction of a step's, if it is not measured.
    """
    settings = experiment.train
    if processes.device.type == "cpu" and processes.world_size == 1 and is_busy():
        choose_threads(settings.precision)
    train_step = TrainStep(objective, copy.deepcopy(model), experiment, processes)
    begun = clock()

    def timed(batches: Iterable[list[Any]]) -> float:
        started = clock()
        train_step(next(iter(batches)), 0, settings)
        if processes.device.type == "cuda":
            torch.cuda.synchronize(processes.device)
        return clock() - started

    samples = len(train) / steps_of_epoch(train, settings.batch_size, settings.seed)
    step_s = None
    if not settings.compile:  # which would compile for each size
        parts = int(samples / processes.world_size / settings.accumulate) // _FEWEST_SAMPLES
        step_s = _extrapolate(timed, train_step, train, parts, seconds, longest_s)
    start_s = clock() - begun
    if step_s is None:
        steps = train_step.batches(train, 0, _WARM_STEPS + _MOST_STEPS)
        start_s, *_, last_s = (timed(steps) for _ in range(_WARM_STEPS))
        wanted = processes.from_first(lambda: int(seconds / max(last_s, 1e-6)))
        num_steps = min(max(wanted, _FEWEST_STEPS), _MOST_STEPS)
        step_s = statistics.median(timed(steps) for _ in range(num_steps))
    validation_s = 0.0
    if validation and settings.validations:
        validation_s = evaluation_share * step_s * len(validation) / samples
        if processes.any_of(validation_s <= seconds)[0]:
            started = clock()
            train_step.validate(validation)
            validation_s = clock() - started
    measured = StepTimes(start_s=start_s, step_s=step_s, validation_s=validation_s)
    return processes.from_first(lambda: measured)


def _extrapolate(
    timed: Callable[[Iterable[list[Any]]], float],
    train_step: TrainStep,
    train: SampleSource,
    parts: int,
    seconds: float,
    longest_s: float,
) -> float | None:
    """Estimate a step's time from steps with a part of its samples, each twice as large as the one before.

    Args:
        parts: of a step, of which the first steps take one.

    Returns:
        None as soon as whole steps are known to be affordable.
    """
    spent_s, former, whole_s, busy = 0.0, None, None, is_busy()
    while parts > 1:
        part = next(train_step.batches(train, 0, 1, parts=parts))
        tries = [timed([part])]
        while len(tries) < 2 + busy and (former is None or tries[-1] < _LONG_S):
            tries.append(timed([part]))
        part_s = min(tries)  # the first one imports and allocates, and other programs may hold up any
        spent_s += sum(tries)
        whole_s = parts * part_s
        is_known = whole_s > 2 * longest_s and not busy  # what the samples do not take is then long, too
        if former is not None:  # the optimiser's time does not grow with the samples
            whole_s = min(whole_s, part_s + 2 * max(0.0, part_s - former) * (parts - 1))
            is_known = whole_s > longest_s or spent_s + 4 * part_s > seconds
        is_enough = part_s >= _LONG_S and is_known  # other work may hold up a shorter one
        is_affordable = (_WARM_STEPS + _FEWEST_STEPS) * whole_s <= 2 * seconds
        is_affordable, is_enough = train_step.processes.any_of(is_affordable, is_enough)
        if is_affordable or is_enough:
            return None if is_affordable else whole_s
        parts, former = parts // 2, part_s
    return whole_s


def is_busy() -> bool:
    """Return whether other programs take much of this machine's cores."""
    return psutil.getloadavg()[0] > BUSY * count_cores()


def steps_for_budget(
    budget_s: float, uses: Mapping[str, float], step_s: float, *, smaller: str = "model"
) -> int:
    """Return how many steps fit into a budget; ``ConfigError`` if so few that nothing would be learned.

    Args:
        uses: the seconds that everything else takes, by what it is.
        smaller: what would make a step shorter, for the message.
    """
    other_s = sum(uses.values())
    steps = max(0, int((budget_s - other_s) / step_s))
    if steps < MIN_STEPS:
        load, num_cores = psutil.getloadavg()[0], count_cores()
        busy = f". Other programs slow this machine: load {load:.0f} on {number_of(num_cores, 'core')}"
        busy = busy if is_busy() else ""
        minutes = math.ceil((other_s + FEWEST_PLANNED * step_s) / 60)
        listed = ", ".join(f"{name} {format_duration(seconds)}" for name, seconds in uses.items())
        raise ConfigError(
            f"{format_duration(budget_s)} are enough for {number_of(steps, 'training step')}: one takes "
            f"about {format_duration(step_s)}, {listed}",
            expected=f"about {minutes} min, for {FEWEST_PLANNED} steps and the rest",
            remedy=f"Give --budget {minutes}m, or a smaller {smaller}{busy}",
        )
    return steps


class Deadline:
    """Checks whether the planned steps fit into the time left, and proposes a new plan.

    Args:
        ends_at: end of the budget.
        after_s: time of what follows training, from that of a step, which tells how fast the machine is.
        pause_s: expected duration of a pause (a validation), until one has been seen.
    """

    def __init__(
        self,
        ends_at: float,
        *,
        after_s: Callable[[float], float] = lambda step_s: 0.0,
        pause_s: float = 0.0,
        clock: Clock = time.monotonic,
    ) -> None:
        self.ends_at = ends_at
        self._after_s, self._pause_s, self._clock = after_s, pause_s, clock
        self._step, self._moment = 0, clock()
        self._pauses_s = 0.0
        self._step_s: float | None = None

    def left_s(self, step_s: float, num_pauses: int = 0) -> float:
        """Return the time left for steps, beside pauses and what follows."""
        return self.ends_at - self._clock() - num_pauses * self._pause_s - self._after_s(step_s)

    def begin(self, step: int) -> None:
        """Start measuring after the first step, which is slower than the others."""
        self._step, self._moment, self._pauses_s = step, self._clock(), 0.0

    def pause(self, seconds: float) -> None:
        """Exclude a validation from the measured step time, and expect the next ones to take as long."""
        self._pauses_s += seconds
        self._pause_s = seconds

    def is_due(self) -> bool:
        """Return whether a share of the time left has passed: by steps, a slower one would be seen late."""
        now = self._clock()
        return now - self._moment >= max(_REVIEW_SHARE * (self.ends_at - now), _SHORTEST_REVIEW_S)

    def review(self, step: int, steps: int, *, progress: float, num_pauses: int) -> int:
        """Return the corrected total number of steps; unchanged if on schedule.

        The plan is shortened when the remaining steps would take too long, and lengthened when a load on the
        machine that had slowed calibration or training has gone; ``num_pauses`` validations follow.
        """
        if step <= self._step or step >= steps:
            return steps
        newest_s = max(self._clock() - self._moment - self._pauses_s, 1e-9) / (step - self._step)
        mean_s = newest_s if self._step_s is None else (self._step_s + newest_s) / 2
        self._step_s = max(newest_s, mean_s)  # a slower machine counts at once, a faster one once it lasts
        self.begin(step)
        left = self.left_s(self._step_s, num_pauses) / self._step_s
        planned = steps - step
        if planned > left * (1 + _TOLERANCE):
            fewest = planned / _LARGEST_CHANGE if self._clock() < self.ends_at else 1
            return step + max(1, int(max(left, fewest)))
        if progress < _MAY_EXTEND_BEFORE and left - planned > max(_SLACK * left, 2 * _TOLERANCE * steps):
            return step + int(min(left * (1 - _TOLERANCE), planned * _LARGEST_CHANGE))
        return steps


class Plan:
    """Reads a run's plan, and records corrections.

    Args:
        deadline: requests corrections when the machine is slower or faster than expected.
    """

    def __init__(self, run: Run, processes: Processes, deadline: Deadline | None) -> None:
        self._run, self._processes, self._deadline = run, processes, deadline

    @property
    def settings(self) -> TrainSettings:
        """The settings with all corrections so far."""
        return self._run.experiment.train

    def steps(self, step: int) -> int:
        return planned_steps(step, steps=self.settings.steps, replans=self.settings.replans)

    def progress(self, step: int, *, before: bool = False) -> float:
        return progress_at(step, steps=self.settings.steps, replans=self.settings.replans, before=before)

    def restarts(self, step: int) -> bool:
        """Return whether a training that was finished at a step goes on from there."""
        return any(replan.at_step == step for replan in self.settings.replans if replan.progress is not None)

    def extend(self, step: int, num_steps: int) -> None:
        """Go on for more steps; if all were done, from where a run of the whole length would be."""
        total = step + num_steps
        self.change(step, total, progress=step / total if step >= self.steps(step) else None)

    def change(self, step: int, steps: int, *, progress: float | None = None) -> None:
        """Change the planned number of steps from a step on; the first process records it."""
        if self._processes.is_first:
            self._run.replan(Replan(at_step=step, steps=steps, progress=progress))
        self._run.experiment = self._processes.from_first(lambda: self._run.experiment)

    def review(self, step: int) -> bool:
        """Correct the plan if the deadline asks for it; return whether it did. The first process decides."""
        deadline, former, progress = self._deadline, self.steps(step), self.progress(step, before=True)
        if deadline is None or step == former or not self._processes.any_of(deadline.is_due())[0]:
            return False
        num_pauses = self.settings.validations - math.floor(self.settings.validations * progress)
        steps = self._processes.from_first(
            lambda: deadline.review(step, former, progress=progress, num_pauses=num_pauses)
        )
        if steps == former:
            return False
        self.change(step, steps)
        return True


def check_batch_size(settings: TrainSettings, world_size: int) -> None:
    """Raise ``ConfigError`` if a batch is too small for the processes and micro-batches."""
    if settings.batch_size >= world_size * settings.accumulate:
        return
    parts = "" if settings.accumulate == 1 else f" with {settings.accumulate} micro-batches each"
    raise ConfigError(
        f"train.batch_size is {settings.batch_size} for {world_size} processes{parts}",
        expected="at least one sample for each process and micro-batch",
        remedy="Raise train.batch_size, start fewer processes or lower train.accumulate",
    )
