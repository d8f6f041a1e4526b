"""The training loop, for any objective, model and data."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from vitrail.core.errors import CheckpointError
from vitrail.data.stream import SampleSource, StandIn
from vitrail.models.checkpoint import state_tensors
from vitrail.train import checkpoints
from vitrail.train.budget import Deadline, Plan, check_batch_size
from vitrail.train.events import Kept, Logged, OnEvent, Replanned, Saved, Started, Stepped, Validated, ignore
from vitrail.train.interrupt import TrainingInterrupted, deferred_interrupts
from vitrail.train.machine import keep_freed_memory, memory_is_full, peak_memory_mib
from vitrail.train.objective import Counting, Objective
from vitrail.train.processes import Processes, single_process
from vitrail.train.run import Run
from vitrail.train.schedule import is_crossed
from vitrail.train.step import TrainStep

_LOGGED_LINES = 200  # approximate number of logged lines per run
_LONGEST_INTERVAL = 100  # steps


class TrainResult(NamedTuple):
    """A finished run."""

    model: nn.Module
    """With the averaged weights, if any; unsharded in every process."""
    steps: int
    elapsed_s: float
    """Training time of all sessions."""
    scores: dict[str, Any]
    """Scores of the last validation, or of the best one where its weights are kept; may be empty."""
    model_step: int
    """Step of the model's weights: the last one or that of the best validation."""


def fit(
    objective: Objective,
    model: nn.Module,
    train: SampleSource,
    validation: SampleSource | None,
    *,
    run: Run,
    processes: Processes | None = None,
    on_event: OnEvent = ignore,
    deadline: Deadline | None = None,
) -> TrainResult:
    """Train a model by the experiment of a run directory, from its newest checkpoint if there is one.

    Every step is a function of the seed and its number: on a CPU with the same number of threads and
    processes, a run that was killed and resumed is bit-exact to an uninterrupted one. Replans recorded in the
    run are replayed.

    Args:
        model: with its initial weights; trained in place.
        run: provides the experiment; receives metrics and checkpoints.
        processes: those that train together, each calling this function; by default this one alone, on the
            CPU.
        on_event: called in the first process only.
        deadline: adjusts the plan to the speed of the machine; not needed by a run that goes on as planned.

    Raises:
        ConfigError: the loss or a gradient is not finite, a batch is smaller than the number of processes and
            micro-batches, or the best validation is wanted but there is none.
        CheckpointError: a checkpoint cannot be written or read.
        TrainingInterrupted: SIGINT or SIGTERM came; the state is saved.
    """
    processes = processes or single_process()
    check_batch_size(run.experiment.train, processes.world_size)
    selection = checkpoints.select_by(objective, validation, run.experiment.train)
    if processes.device.type == "cpu":
        keep_freed_memory()
    train_step = TrainStep(objective, model, run.experiment, processes)
    training = _Training(train_step, run, on_event if processes.is_first else ignore, deadline, selection)
    training.start()
    with deferred_interrupts() as stop_asked:
        training.go_on(train, validation, stop_asked)
    return training.finish()


class _Training:
    """One session of training: counts steps and time, and does what is due after a step."""

    def __init__(
        self,
        train_step: TrainStep,
        run: Run,
        on_event: OnEvent,
        deadline: Deadline | None,
        selection: checkpoints.Selection,
    ) -> None:
        self._train_step, self._run, self._on_event, self._deadline = train_step, run, on_event, deadline
        self._selection, self._processes = selection, train_step.processes
        self._plan = Plan(run, train_step.processes, deadline)
        self.step, self.scores = 0, dict[str, Any]()
        self._former_s, self._started = 0.0, time.monotonic()
        self._saved_step: int | None = None
        self._saved = self._started
        self._meter = Meter(train_step)
        self._interval = min(max(self._plan.settings.steps // _LOGGED_LINES, 1), _LONGEST_INTERVAL)

    def start(self) -> None:
        """Load the newest checkpoint, or write the first one."""
        # The first process decides: a later one might see the checkpoint that the first is writing already.
        folder = self._processes.from_first(lambda: checkpoints.newest_checkpoint(self._run.checkpoints))
        mark = None
        if folder is not None:
            position = checkpoints.load_training(folder, self._train_step)
            self.step, self._former_s, self.scores = position.step, position.elapsed_s, position.scores
            self._saved_step, self._meter = self.step, Meter(self._train_step)
            self._selection.so_far = position.selection
            self._complete_best()
            mark = position.metrics
        if self._processes.is_first:
            self._run.rewind(self.step if folder is not None else -1, mark)
            if folder is not None:  # a kill may have come between writing it and removing the older ones
                checkpoints.prune_checkpoints(self._run.checkpoints, kept=folder)
        if folder is None:
            self._save()
        self._on_event(Started(self.step, self._plan.steps(self.step)))

    def go_on(
        self, train: SampleSource, validation: SampleSource | None, stop_asked: threading.Event
    ) -> None:
        first = self.step
        for batches in self._batches(train):
            # The plan as it was before this step: one that is recorded for its end counts from then on.
            former = self._plan.steps(self.step)
            if self._plan.restarts(self.step):
                self._selection.so_far = checkpoints.Selected(best=self._selection.best)
            try:
                self._train_step(batches, self.step, self._plan.settings)
            except torch.OutOfMemoryError:
                raise memory_is_full(
                    f"Set train.accumulate={2 * self._plan.settings.accumulate}, or lower train.batch_size; "
                    f"{self._kept()}"
                ) from None
            self._meter.add(batches)
            self.step += 1
            self._on_event(Stepped(self.step, former))
            if self._deadline is not None and self.step == first + 1:
                self._deadline.begin(self.step)
            if self.step % self._interval == 0 or self.step == former:
                self._log(former)
            if validation and self._is_validated():
                self._validate(validation)
            if not self._stop_early(former) and self._plan.review(self.step):
                self._on_event(Replanned(self.step, former, self._plan.steps(self.step)))
            steps = self._plan.steps(self.step)
            is_time = time.monotonic() - self._saved >= self._plan.settings.checkpoint_every_s
            stop, save = self._processes.any_of(stop_asked.is_set(), is_time and self._processes.is_first)
            if stop or save or self.step == steps:
                self._save()
            if stop and self.step < steps:
                raise TrainingInterrupted(self._run.path, self.step, steps)

    def finish(self) -> TrainResult:
        best, tensors = self._selection.best, None
        if best is not None and self._selection.keeps_best:
            tensors = checkpoints.load_best(
                self._run.checkpoints, best, state_tensors(self._train_step.model)
            )
            self._on_event(Kept(best.step, self.step, best.value))
            step, scores = best.step, best.scores
        else:
            step, scores = self.step, self.scores
        model = self._train_step.finish(tensors)
        return TrainResult(model, self.step, self.elapsed_s(), scores, model_step=step)

    def elapsed_s(self) -> float:
        return self._former_s + time.monotonic() - self._started

    def _complete_best(self) -> None:
        """Check the best weights now, not after the training.

        If a kill came between the checkpoint of their step and them, they are stored again.
        """
        best, root = self._selection.best, self._run.checkpoints
        if best is None or not self._selection.keeps_best:
            return
        targets = state_tensors(self._train_step.model)
        try:
            self._processes.from_first(lambda: checkpoints.load_best(root, best, targets) and None)
        except CheckpointError:
            if best.step != self.step:
                raise
            checkpoints.save_best(root, self._train_step, best)

    def _batches(self, train: SampleSource) -> Iterator[list[Any]]:
        """Yield the batches of each step until the plan, which may change meanwhile, is fulfilled."""
        while self.step < self._plan.steps(self.step):
            for batches in self._train_step.batches(train, self.step, self._plan.steps(self.step)):
                yield batches
                if self.step >= self._plan.steps(self.step):
                    return

    def _is_validated(self) -> bool:
        before, after = self._plan.progress(self.step - 1), self._plan.progress(self.step, before=True)
        return is_crossed(self._plan.settings.validations, before, after)

    def _log(self, steps: int) -> None:
        self._check_finite()
        (samples_per_s, items_per_s), objective = self._meter.read(), self._train_step.objective
        loss, norm, parts = self._train_step.means()
        self._train_step.clear_sums()
        logged = Logged(
            step=self.step,
            steps=steps,
            loss=loss,
            parts=parts,
            rate=self._train_step.rate(self.step - 1, self._plan.settings),
            gradient_norm=norm,
            samples_per_s=samples_per_s,
            elapsed_s=self.elapsed_s(),
            peak_memory_mib=peak_memory_mib(self._processes.device),
            items_per_s=items_per_s if isinstance(objective, Counting) else None,
            unit=objective.unit if isinstance(objective, Counting) else "samples",
        )
        self._record("train", logged)

    def _validate(self, validation: SampleSource) -> None:
        self._check_finite()
        started = time.monotonic()
        scores = self._train_step.validate(validation)
        self.scores = self._processes.from_first(lambda: scores)  # others may differ in the last digits
        seconds = time.monotonic() - started
        self._meter.pause(seconds)
        if self._deadline is not None:
            self._deadline.pause(seconds)
        self._record("validation", Validated(self.step, self.scores, self.elapsed_s()))
        if self._selection.add(self.step, self.scores) and self._selection.keeps_best:
            self._keep_best()

    def _keep_best(self) -> None:
        """Store the weights of this step as the best ones.

        The checkpoint comes first: a run resumed from it knows the best step, and stores missing weights
        again.
        """
        self._save()
        started = time.monotonic()
        assert self._selection.best is not None
        checkpoints.save_best(self._run.checkpoints, self._train_step, self._selection.best)
        self._meter.pause(time.monotonic() - started)

    def _stop_early(self, former: int) -> bool:
        if self.step == former:
            return False
        if self.step < self._plan.steps(self.step):
            if not self._selection.is_hopeless or self._plan.restarts(self.step):
                return False
            self._plan.change(self.step, steps=self.step)
        if self.step % self._interval:
            self._log(former)
        self._on_event(self._selection.stopped_early(self.step, former))
        return True

    def _save(self) -> None:
        if self._saved_step == self.step:
            return
        self._check_finite()
        started = time.monotonic()
        position = checkpoints.Position(
            step=self.step,
            elapsed_s=self.elapsed_s(),
            scores=self.scores,
            selection=self._selection.so_far,
            metrics=self._run.flush_metrics() if self._processes.is_first else None,
        )
        folder = checkpoints.save_training(self._run.checkpoints, self._train_step, position)
        self._saved_step, self._saved = self.step, time.monotonic()
        self._meter.pause(self._saved - started)
        self._on_event(Saved(self.step, folder))

    def _check_finite(self) -> None:
        self._train_step.check_finite(self._plan.steps(self.step), self._kept())

    def _kept(self) -> str:
        return f"the checkpoint of step {self._saved_step} in {self._run.checkpoints} is kept"

    def _record(self, kind: str, event: Logged | Validated) -> None:
        if self._processes.is_first:
            self._run.log(kind=kind, **event._asdict())
        self._on_event(event)


class Meter:
    """Counts samples and items between readings.

    Args:
        train_step: counts the items; items counted before resuming are excluded.
    """

    def __init__(self, train_step: TrainStep, clock: Callable[[], float] = time.monotonic) -> None:
        self._train_step, self._clock = train_step, clock
        self._since, self._num_samples, self._former_items = clock(), 0, train_step.count()

    def add(self, batches: Sequence[Any]) -> None:
        self._num_samples += sum(len(batch) for batch in batches if not isinstance(batch, StandIn))

    def pause(self, seconds: float) -> None:
        self._since += seconds

    def read(self) -> tuple[float, float]:
        """Return samples and items of the loss per second since the last reading; collective."""
        now = self._clock()
        seconds = max(now - self._since, 1e-9)
        num_samples = torch.tensor([float(self._num_samples)], dtype=torch.float64)
        samples = float(self._train_step.processes.add_up(num_samples))
        items = self._train_step.count() - self._former_items
        self._since, self._num_samples, self._former_items = now, 0, 0.0
        return samples / seconds, items / seconds
