"""One optimiser step as a function of the seed and the step number."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.data.stream import seed_of
from vitrail.evaluate import run_evaluator
from vitrail.experiment import Experiment, TrainSettings
from vitrail.tasks.contract import Loss, SampleSource, Task
from vitrail.train.average import WeightAverage, averaging_weight
from vitrail.train.optimise import Optimisers
from vitrail.train.precision import autocast
from vitrail.train.processes import Processes, distribute, gathered_weights, whole_tensor
from vitrail.train.schedule import planned_steps, progress_at, rate_at

_LOSS, _COUNT, _NORM = range(3)
_NEVER = 2**53  # the largest step number that float64 holds exactly


class TrainStep:
    """A model with all that one step changes: weights, optimiser memory, average, running sums.

    Args:
        task: gives the loss.
        model: its weights are trained in place; it is moved to the device of the process.
        experiment: rates, precision, seed.
        processes: those that train together.
    """

    def __init__(self, task: Task, model: nn.Module, experiment: Experiment, processes: Processes) -> None:
        self.task, self.processes, self.optim = task, processes, experiment.optim
        self.precision, self.seed = experiment.train.precision, experiment.train.seed
        self.model = model.to(processes.device).train()
        is_sharded = processes.world_size > 1 and experiment.train.parallel == "fsdp"
        self._unsharded = copy.deepcopy(model).cpu() if is_sharded else None
        if experiment.train.compile:
            self.model.compile()
        self._called = distribute(self.model, processes, experiment.train.parallel)
        self.optimisers = Optimisers(self.model, experiment.optim)
        self.average = WeightAverage(self.model) if experiment.optim.ema_fraction else None
        self.part_names: tuple[str, ...] = ()
        self.sums: Tensor
        self.num_summed: int
        self.diverged_at: Tensor
        self.clear_sums()

    def __call__(self, batch: Any, step: int, plan: TrainSettings) -> None:
        """Take one step.

        Args:
            batch: this process's share of the step's samples.
            step: steps done before.
            plan: tells how far the training is.
        """
        torch.manual_seed(seed_of("step", self.seed, step, self.processes.rank))
        device = self.processes.device
        with autocast(self.precision, device):
            loss = self.task.loss(self._called, batch.to(device))
        sums = self._sums(loss)
        # Gradients are averaged over the processes, while the loss is divided by the count of all of them.
        mean = loss.total * (self.processes.world_size / sums[_COUNT].to(loss.total.dtype))
        torch.autograd.backward(mean)
        norm = self.optimisers.clip()
        self.optimisers.set_rate(self.rate(step, plan))
        self.optimisers.step()
        if self.average is not None:
            horizon = self.optim.ema_fraction * planned_steps(step, steps=plan.steps, replans=plan.replans)
            self.average.update(averaging_weight(step + 1, horizon))
        sums[_NORM] = norm
        is_finite = torch.isfinite(sums[_LOSS] + sums[_NORM])
        self.diverged_at = torch.where(is_finite, self.diverged_at, self.diverged_at.clamp(max=step))
        self.sums = sums if self.num_summed == 0 else self.sums + sums
        self.num_summed += 1

    def validate(self, samples: SampleSource, settings: TrainSettings) -> dict[str, Any]:
        """Score the averaged weights, or the weights where none are averaged."""
        evaluator = self.task.evaluator()
        averaged = nullcontext() if self.average is None else self.average.in_place()
        with averaged, gathered_weights(self.model):
            run_evaluator(
                evaluator,
                self.task,
                self.model,
                samples,
                batch_size=max(1, settings.batch_size // self.processes.world_size),
                device=self.processes.device,
                precision=settings.precision,
                num_workers=settings.num_workers,
            )
        return evaluator.result()

    def rate(self, step: int, plan: TrainSettings) -> float:
        """Return the learning rate of a step as a share of its peak."""
        # The middle of the step: the first one is not lost at rate 0, the last one is near the end's.
        before, after = (progress_at(at, steps=plan.steps, replans=plan.replans) for at in (step, step + 1))
        return rate_at(
            (before + after) / 2,
            warmup_fraction=self.optim.warmup_fraction,
            final_rate=self.optim.final_rate,
        )

    def first_bad_step(self) -> int | None:
        """Return the first step whose loss or gradient was not finite; waits for the device."""
        step = int(self.diverged_at)
        return None if step == _NEVER else step

    def means(self) -> tuple[float, float, dict[str, float]]:
        """Return loss, gradient norm and parts averaged since the sums were cleared; waits for the device."""
        loss, count, norm, *parts = self.sums.tolist()
        named = {name: part / count for name, part in zip(self.part_names, parts, strict=True)}
        return loss / count, norm / self.num_summed, named

    def clear_sums(self) -> None:
        """Begin new averages."""
        self.sums = torch.zeros(3 + len(self.part_names), dtype=torch.float64, device=self.processes.device)
        self.num_summed = 0
        self.diverged_at = torch.tensor(_NEVER, dtype=torch.float64, device=self.processes.device)

    def finish(self) -> nn.Module:
        """Put the averages in the place of the weights, and return the model as one process can use it."""
        if self.average is not None:
            self.average.settle()
        if self._unsharded is None:
            return self.model
        whole = {name: whole_tensor(tensor) for name, tensor in self.model.state_dict().items()}
        self._unsharded.load_state_dict(whole)
        return self._unsharded.to(self.processes.device)

    def _sums(self, loss: Loss) -> Tensor:
        self.part_names = tuple(sorted(loss.parts))
        parts = [loss.parts[name] for name in self.part_names]
        nothing = torch.zeros_like(loss.count)
        values = [loss.total.detach(), loss.count, nothing, *parts]
        return self.processes.add_up(torch.stack([value.detach().double() for value in values]))
