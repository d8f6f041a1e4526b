"""The plan of a run in force at a step, and its corrections, the same in every process."""

from __future__ import annotations

from vitrail.core.errors import ConfigError
from vitrail.train.budget import Deadline
from vitrail.train.processes import Processes
from vitrail.train.run import Run
from vitrail.train.schedule import planned_steps, progress_at
from vitrail.train.settings import Replan, TrainSettings


class Plan:
    """Reads a run's plan, and records its corrections.

    Args:
        run: its experiment holds the plan.
        processes: those that train together.
        deadline: asks for corrections when the machine is slower or faster than expected.
    """

    def __init__(self, run: Run, processes: Processes, deadline: Deadline | None) -> None:
        self._run, self._processes, self._deadline = run, processes, deadline

    @property
    def settings(self) -> TrainSettings:
        """The settings with all corrections so far."""
        return self._run.experiment.train

    def steps(self, step: int) -> int:
        """Return the number of steps that are planned after ``step`` steps."""
        return planned_steps(step, steps=self.settings.steps, replans=self.settings.replans)

    def progress(self, step: int) -> float:
        """Return the share of the training that is done after ``step`` steps, 0 to 1."""
        return progress_at(step, steps=self.settings.steps, replans=self.settings.replans)

    def change(self, step: int, steps: int) -> None:
        """Plan another number of steps from a step on; the first process writes it down."""
        if self._processes.is_first:
            self._run.replan(Replan(at_step=step, steps=steps))
        self._run.adopt(self._processes.from_first(lambda: self._run.experiment))

    def review(self, step: int, *, validation_s: float) -> bool:
        """Correct the plan if the deadline asks for it, and return whether it did; the first process decides.

        Args:
            step: steps done.
            validation_s: how long a validation takes.
        """
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
    """Check that a step can be divided among processes and micro-batches.

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
