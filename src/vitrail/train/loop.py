"""The training loop: any task, any model, any samples."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from torch import nn

from vitrail.data.stream import training_batches
from vitrail.errors import ConfigError
from vitrail.experiment import Replan, TrainSettings
from vitrail.tasks.contract import SampleSource, Task
from vitrail.train.allocator import keep_freed_memory
from vitrail.train.budget import Deadline
from vitrail.train.events import Logged, OnEvent, Replanned, Saved, Started, Stepped, Validated, ignore
from vitrail.train.interrupt import Interrupts, TrainingInterrupted, deferred_interrupts
from vitrail.train.memory import peak_memory_mib
from vitrail.train.processes import Processes, single_process
from vitrail.train.resume import Position, load_training, newest_checkpoint, save_training
from vitrail.train.run import Run
from vitrail.train.schedule import is_crossed, planned_steps, progress_at
from vitrail.train.step import TrainStep

_LOGGED_LINES = 200  # about so many lines of metrics for a run
_LONGEST_INTERVAL = 100  # steps


class TrainResult(NamedTuple):
    """A finished run."""

    model: nn.Module
    """With the averaged weights, where they are averaged; whole in every process."""
    steps: int
    """Steps done in all."""
    elapsed_s: float
    """Training time of all sessions."""
    scores: dict[str, Any]
    """The last validation; empty without one."""


def fit(
    task: Task,
    model: nn.Module,
    train: SampleSource,
    validation: SampleSource | None,
    *,
    run: Run,
    processes: Processes | None = None,
    on_event: OnEvent = ignore,
    resume: bool = False,
    deadline: Deadline | None = None,
) -> TrainResult:
    """Train a model as the experiment of a run directory says, and record the course there.

    Every step is a function of the seed and its number: a run that was killed and resumed, with the same
    threads and processes on a CPU, ends with the same bits as one that never stopped. Replans recorded
    in the run are replayed.

    Args:
        task: gives batches, loss and evaluator.
        model: with its initial weights; it is trained in place.
        train: what is learned from.
        validation: what the validation curve is measured on.
        run: holds the experiment and takes metrics and checkpoints.
        processes: those that train together, each calling this function; by default this one, on the CPU.
        on_event: is told what happens, in the first process only.
        resume: go on from the newest checkpoint of the run; from the start where there is none.
        deadline: shortens the plan when the machine is slower than expected; a resumed run needs none.

    Raises:
        ConfigError: the loss or a gradient is not finite any more, or a batch is smaller than the number
            of processes.
        CheckpointError: a checkpoint cannot be written or read.
        TrainingInterrupted: SIGINT or SIGTERM came; the state is saved.
    """
    processes = processes or single_process()
    batch_size = run.experiment.train.batch_size
    if batch_size < processes.world_size:
        raise ConfigError(
            f"train.batch_size is {batch_size} for {processes.world_size} processes",
            expected="at least one sample for each process",
            remedy="Raise train.batch_size or start fewer processes",
        )
    if processes.device.type == "cpu":
        keep_freed_memory()
    train_step = TrainStep(task, model, run.experiment, processes)
    training = _Training(train_step, run, on_event if processes.is_first else ignore, deadline)
    training.start(resume)
    with deferred_interrupts() as interrupts:
        training.go_on(train, validation, interrupts)
    return TrainResult(train_step.finish(), training.step, training.elapsed_s(), training.scores)


class _Training:
    """The course of one session: counts steps and time, and does what is due after a step."""

    def __init__(self, train_step: TrainStep, run: Run, on_event: OnEvent, deadline: Deadline | None) -> None:
        self._train_step, self._run, self._on_event, self._deadline = train_step, run, on_event, deadline
        self._processes = train_step.processes
        self.step, self.scores = 0, dict[str, Any]()
        self._former_s, self._started = 0.0, time.monotonic()
        self._saved_step: int | None = None
        self._saved, self._logged, self._logged_step = self._started, self._started, 0
        self._validation_s = 0.0
        self._interval = min(max(self._plan.steps // _LOGGED_LINES, 1), _LONGEST_INTERVAL)

    def start(self, resume: bool) -> None:
        """Take over the newest checkpoint, or write the first one."""
        folder = newest_checkpoint(self._run.checkpoints) if resume else None
        if folder is not None:
            self.step, self._former_s = load_training(folder, self._train_step)
            self._saved_step = self._logged_step = self.step
            for entry in self._run.metrics():
                if entry["kind"] == "validation" and entry["step"] <= self.step:
                    self.scores = entry["scores"]
        if self._processes.is_first:
            self._run.rewind(self.step if folder is not None else -1)
        if folder is None:
            self._save()
        self._on_event(Started(self.step, self._steps))

    def go_on(self, train: SampleSource, validation: SampleSource | None, interrupts: Interrupts) -> None:
        """Take all steps that are left."""
        first = self.step
        for batch in self._batches(train):
            before = self._progress
            self._train_step(batch, self.step, self._plan)
            self.step += 1
            self._on_event(Stepped(self.step, self._steps))
            if self._deadline is not None and self.step == first + 1:
                self._deadline.begin(self.step)
            if self.step % self._interval == 0 or self.step == self._steps:
                self._log()
            if validation is not None and is_crossed(self._plan.validations, before, self._progress):
                self._validate(validation)
            self._review(before)
            is_time = time.monotonic() - self._saved >= self._plan.checkpoint_every_s
            stop, save = self._processes.any_of(interrupts.requested, is_time and self._processes.is_first)
            if stop or save or self.step == self._steps:
                self._save()
            if stop and self.step < self._steps:
                raise TrainingInterrupted(self._run.path, self.step, self._steps)

    def elapsed_s(self) -> float:
        """Return the training time of all sessions."""
        return self._former_s + time.monotonic() - self._started

    @property
    def _plan(self) -> TrainSettings:
        return self._run.experiment.train

    @property
    def _steps(self) -> int:
        return planned_steps(self.step, steps=self._plan.steps, replans=self._plan.replans)

    @property
    def _progress(self) -> float:
        return progress_at(self.step, steps=self._plan.steps, replans=self._plan.replans)

    def _batches(self, train: SampleSource) -> Iterator[Any]:
        """Yield batches until the plan in force is fulfilled, which may change meanwhile."""
        while self.step < self._steps:
            batches = training_batches(
                train,
                self._train_step.task,
                batch_size=self._plan.batch_size,
                seed=self._plan.seed,
                start_step=self.step,
                num_steps=self._steps,
                num_workers=self._plan.num_workers,
                rank=self._processes.rank,
                world_size=self._processes.world_size,
            )
            for batch in batches:
                yield batch
                if self.step >= self._steps:
                    return

    def _log(self) -> None:
        self._check_finite()
        loss, norm, parts = self._train_step.means()
        self._train_step.clear_sums()
        now = time.monotonic()
        samples = (self.step - self._logged_step) * self._plan.batch_size
        logged = Logged(
            step=self.step,
            steps=self._steps,
            loss=loss,
            parts=parts,
            rate=self._train_step.rate(self.step - 1, self._plan),
            gradient_norm=norm,
            samples_per_s=samples / max(now - self._logged, 1e-9),
            elapsed_s=self.elapsed_s(),
            peak_memory_mib=peak_memory_mib(self._processes.device),
        )
        self._logged, self._logged_step = now, self.step
        self._record("train", logged)
        self._on_event(logged)

    def _validate(self, validation: SampleSource) -> None:
        self._check_finite()
        started = time.monotonic()
        self.scores = self._train_step.validate(validation, self._plan)
        self._validation_s = time.monotonic() - started
        self._logged += self._validation_s
        if self._deadline is not None:
            self._deadline.pause(self._validation_s)
        validated = Validated(self.step, self.scores, self.elapsed_s())
        self._record("validation", validated)
        self._on_event(validated)

    def _review(self, before: float) -> None:
        """Shorten the plan where the deadline would be missed; the first process decides."""
        deadline, progress, former = self._deadline, self._progress, self._steps
        if deadline is None or self.step == former or not deadline.is_due(before, progress):
            return
        validations_left = self._plan.validations * (1 - progress)
        steps = self._processes.from_first(
            lambda: deadline.review(
                self.step,
                former,
                progress=progress,
                pauses_left_s=validations_left * self._validation_s,
            )
        )
        if steps == former:
            return
        replan = Replan(at_step=self.step, steps=steps)
        if self._processes.is_first:
            self._run.replan(replan)
        self._run.adopt(self._processes.from_first(lambda: self._run.experiment))
        self._on_event(Replanned(self.step, former, steps))

    def _save(self) -> None:
        if self._saved_step == self.step:
            return
        self._check_finite()
        started = time.monotonic()
        folder = save_training(self._run.checkpoints, self._train_step, Position(self.step, self.elapsed_s()))
        self._saved_step, self._saved = self.step, time.monotonic()
        self._logged += self._saved - started
        self._on_event(Saved(self.step, folder))

    def _check_finite(self) -> None:
        bad = self._train_step.first_bad_step()
        if bad is None:
            return
        raise ConfigError(
            f"the loss or a gradient became infinite or NaN at step {bad + 1} of {self._steps}",
            expected="finite numbers",
            remedy=(
                "Lower optim.learning_rate, raise optim.warmup_fraction or use train.precision=float32; "
                f"the checkpoint of step {self._saved_step} in {self._run.checkpoints} is kept"
            ),
        )

    def _record(self, kind: str, event: Logged | Validated) -> None:
        if self._processes.is_first:
            self._run.log(kind=kind, **event._asdict())
