"""A wall-clock budget as a number of steps: calibrated before training, corrected during it."""

from __future__ import annotations

import copy
import itertools
import math
import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import nn

from vitrail.core.errors import ConfigError
from vitrail.data.stream import SampleSource
from vitrail.train.objective import Objective
from vitrail.train.processes import Processes
from vitrail.train.run import Run
from vitrail.train.schedule import is_crossed, planned_steps, progress_at
from vitrail.train.settings import Experiment, Replan, TrainSettings
from vitrail.train.step import TrainStep

Clock = Callable[[], float]

_WARM_STEPS = 3  # the first steps allocate, compile and fill caches
_FEWEST_STEPS, _MOST_STEPS = 3, 30
_REVIEWS = 20  # one review each 5 % of the steps
_LATE = 0.95  # from here on one review each percent
_TOLERANCE = 0.02  # a smaller deviation than this is noise
_MAY_EXTEND_BEFORE = 0.8  # of the progress; later the rate is too low for further steps to matter
_LARGEST_EXTENSION = 2.0
FEWEST_PLANNED = 100  # steps in which a small model learns something
_SLACK = 0.1  # share of the time left that must be unused before the plan is lengthened


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
    clock: Clock = time.monotonic,
) -> StepTimes:
    """Time a few training steps on a copy of the model.

    Every process calls this; all return the first one's measurements.

    Args:
        experiment: batch size, precision, workers; the number of steps does not matter.
        seconds: approximate measuring time after the first steps.
    """
    settings = experiment.train
    train_step = TrainStep(objective, copy.deepcopy(model), experiment, processes)
    steps = train_step.batches(train, 0, _WARM_STEPS + _MOST_STEPS)
    moments = [clock()]

    def measure(num_steps: int) -> None:
        for _ in range(num_steps):
            train_step(next(steps), len(moments) - 1, settings)
            if processes.device.type == "cuda":
                torch.cuda.synchronize(processes.device)
            moments.append(clock())

    measure(_WARM_STEPS)
    last_s = moments[-1] - moments[-2]
    wanted = processes.from_first(lambda: int(seconds / max(last_s, 1e-6)))
    measure(min(max(wanted, _FEWEST_STEPS), _MOST_STEPS))
    later = [after - before for before, after in itertools.pairwise(moments[_WARM_STEPS:])]
    validation_s = 0.0
    if validation is not None and settings.validations:
        started = clock()
        train_step.validate(validation)
        validation_s = clock() - started
    measured = StepTimes(
        start_s=moments[1] - moments[0], step_s=statistics.median(later), validation_s=validation_s
    )
    return processes.from_first(lambda: measured)


def steps_for_budget(seconds_left: float, step_seconds: float, reserve_seconds: float) -> int:
    """Return how many steps fit into the time left, minus a reserve for what follows training.

    Raises:
        ConfigError: not even one step fits.
    """
    steps = int((seconds_left - reserve_seconds) / step_seconds)
    if steps < 1:
        least = reserve_seconds + step_seconds - seconds_left
        missing = least + (FEWEST_PLANNED - 1) * step_seconds
        raise ConfigError(
            f"the budget leaves no time for a single step, which takes {step_seconds:.2f} s, beside the "
            "start, the evaluation and the report",
            expected=f"{math.ceil(least)} s more for one step, {math.ceil(missing)} s for {FEWEST_PLANNED}",
            remedy="Give a longer --budget, or a smaller model or batch size",
        )
    return steps


class Deadline:
    """Checks whether the planned steps fit into the time left, and proposes a new plan."""

    def __init__(self, ends_at: float, *, clock: Clock = time.monotonic) -> None:
        self._ends_at, self._clock = ends_at, clock
        self._step, self._moment = 0, clock()
        self._pauses_s = 0.0
        self._step_s: float | None = None

    def begin(self, step: int) -> None:
        """Start measuring after the first step, which is slower than the others."""
        self._step, self._moment, self._pauses_s = step, self._clock(), 0.0

    def pause(self, seconds: float) -> None:
        """Exclude time (a validation) from the measured step time."""
        self._pauses_s += seconds

    def is_due(self, before: float, after: float) -> bool:
        return is_crossed(_REVIEWS, before, after) or (after >= _LATE and is_crossed(100, before, after))

    def review(self, step: int, steps: int, *, progress: float, pauses_left_s: float) -> int:
        """Return the corrected total number of steps; unchanged if on schedule.

        The plan is shortened when the remaining steps would take too long, and lengthened when a load on the
        machine that had slowed calibration or training has gone.

        Args:
            progress: fraction of the training done.
            pauses_left_s: expected duration of the remaining validations.
        """
        now = self._clock()
        if step <= self._step or step >= steps:
            return steps
        newest_s = max(now - self._moment - self._pauses_s, 1e-9) / (step - self._step)
        self._step_s = newest_s if self._step_s is None else (self._step_s + newest_s) / 2
        self.begin(step)
        left = (self._ends_at - now - pauses_left_s) / self._step_s
        planned = steps - step
        if planned > left * (1 + _TOLERANCE):
            return step + max(1, int(left))
        if progress < _MAY_EXTEND_BEFORE and planned < left * (1 - _SLACK):
            return step + int(min(left * (1 - _TOLERANCE), planned * _LARGEST_EXTENSION))
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

    def progress(self, step: int) -> float:
        return progress_at(step, steps=self.settings.steps, replans=self.settings.replans)

    def change(self, step: int, steps: int) -> None:
        """Change the planned number of steps from a step on; the first process records it."""
        if self._processes.is_first:
            self._run.replan(Replan(at_step=step, steps=steps))
        self._run.experiment = self._processes.from_first(lambda: self._run.experiment)

    def review(self, step: int, *, validation_s: float) -> bool:
        """Correct the plan if the deadline asks for it; return whether it did. The first process decides."""
        deadline, former, progress = self._deadline, self.steps(step), self.progress(step)
        if deadline is None or step == former or not deadline.is_due(self.progress(step - 1), progress):
            return False
        pauses_left_s = self.settings.validations * (1 - progress) * validation_s
        steps = self._processes.from_first(
            lambda: deadline.review(step, former, progress=progress, pauses_left_s=pauses_left_s)
        )
        if steps == former:
            return False
        self.change(step, steps)
        return True


def check_batch_size(settings: TrainSettings, world_size: int) -> None:
    """Check that a batch can be divided among processes and micro-batches.

    Raises:
        ConfigError: it is too small.
    """
    if settings.batch_size >= world_size * settings.accumulate:
        return
    parts = "" if settings.accumulate == 1 else f" with {settings.accumulate} micro-batches each"
    raise ConfigError(
        f"train.batch_size is {settings.batch_size} for {world_size} processes{parts}",
        expected="at least one sample for each process and micro-batch",
        remedy="Raise train.batch_size, start fewer processes or lower train.accumulate",
    )
