"""One optimiser step as a function of the seed and the step number."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.core.errors import ConfigError
from vitrail.data.stream import SampleSource, StandIn, seed_of, training_batches
from vitrail.models.checkpoint import state_tensors
from vitrail.train.evaluate import run_evaluator
from vitrail.train.machine import autocast
from vitrail.train.objective import Loss, Objective
from vitrail.train.optimise import Optimisers, WeightAverage, averaging_weight
from vitrail.train.processes import (
    Processes,
    distribute,
    gathered_weights,
    kept_gradients,
    sharded_like,
    whole_tensor,
)
from vitrail.train.schedule import planned_steps, progress_at, rate_of, steps_past
from vitrail.train.settings import Experiment, TrainSettings

_LOSS, _COUNT, _NORM = range(3)
_NEVER = 2**53  # the largest step number that float64 holds exactly


class TrainStep:
    """A model with all that a step changes: weights, optimiser state, average, running sums.

    Args:
        model: trained in place; moved to the device of the process.
    """

    def __init__(
        self, objective: Objective, model: nn.Module, experiment: Experiment, processes: Processes
    ) -> None:
        self.objective, self.processes, self.optim = objective, processes, experiment.optim
        self.settings = experiment.train
        self.model = model.to(processes.device).train()
        is_sharded = processes.is_joined and experiment.train.parallel == "fsdp"
        self._unsharded = copy.deepcopy(model).cpu() if is_sharded else None
        if experiment.train.compile:
            self.model.compile()
        self._called = distribute(self.model, processes, experiment.train.parallel)
        self.optimisers = Optimisers(self.model, experiment.optim)
        is_averaged = self.optim.average == "tail" or self.optim.ema_fraction > 0
        self.average = WeightAverage(self.model) if is_averaged else None
        self.part_names: tuple[str, ...] = ()
        self.sums: Tensor
        self.num_summed: int
        self.diverged_at: Tensor
        self.clear_sums()

    def __call__(self, batches: Sequence[Any], step: int, plan: TrainSettings) -> None:
        """Take one step.

        Args:
            batches: this process's micro-batches of the step.
        """
        torch.manual_seed(seed_of("step", self.settings.seed, step, self.processes.rank))
        if len(batches) == 1:
            sums = self._propagate(batches[0])
        else:
            sums = self._propagate_parts(batches, plan.batch_size)
        norm = self.optimisers.clip()
        self.optimisers.set_rate(self.rate(step, plan))
        self.optimisers.step()
        if self.average is not None:
            self.average.update(self._averaging_weight(step, plan))
        sums[_NORM] = norm
        is_finite = torch.isfinite(sums[_LOSS] + sums[_NORM])
        self.diverged_at = torch.where(is_finite, self.diverged_at, self.diverged_at.clamp(max=step))
        self.sums = sums if self.num_summed == 0 else self.sums + sums
        self.num_summed += 1

    def batches(
        self, source: SampleSource, start_step: int, num_steps: int, *, parts: int = 1
    ) -> Iterator[list[Any]]:
        """Yield this process's micro-batches of each step from ``start_step`` up to ``num_steps``.

        Args:
            parts: into which each step is cut, for measuring; they are yielded one by one.
        """
        batches = training_batches(
            source,
            self.objective,
            batch_size=self.settings.batch_size,
            seed=self.settings.seed,
            start_step=start_step,
            num_steps=num_steps,
            num_workers=self.settings.num_workers if parts == 1 else 0,
            rank=self.processes.rank,
            world_size=self.processes.world_size,
            accumulate=self.settings.accumulate * parts,
        )
        while group := list(islice(batches, self.settings.accumulate)):
            yield group

    def validate(self, samples: SampleSource) -> dict[str, Any]:
        """Score the averaged weights, or the weights if there is no average."""
        evaluator, settings = self.objective.evaluator(), self.settings
        num_parts = self.processes.world_size * settings.accumulate
        with self.averaged(), gathered_weights(self.model):
            run_evaluator(
                evaluator,
                self.objective,
                self.model,
                samples,
                batch_size=max(1, settings.batch_size // num_parts),
                precision=settings.precision,
                num_workers=settings.num_workers,
            )
        return evaluator.result()

    def averaged(self) -> AbstractContextManager[None]:
        return nullcontext() if self.average is None else self.average.in_place()

    def rate(self, step: int, plan: TrainSettings) -> float:
        # The middle of the step: the first one is not lost at rate 0, the last one is near the end's.
        before = progress_at(step, steps=plan.steps, replans=plan.replans)
        after = progress_at(step + 1, steps=plan.steps, replans=plan.replans, before=True)
        return rate_of(self.optim, (before + after) / 2)

    def check_finite(self, num_steps: int, kept: str) -> None:
        """Raise ``ConfigError`` if a loss or a gradient was not finite; synchronises."""
        bad = int(self.diverged_at)
        if bad == _NEVER:
            return
        raise ConfigError(
            f"the loss or a gradient became infinite or NaN at step {bad + 1} of {num_steps}",
            expected="finite numbers",
            remedy=(
                "Lower optim.learning_rate, raise optim.warmup_fraction or use train.precision=float32; "
                f"{kept}"
            ),
        )

    def means(self) -> tuple[float, float, dict[str, float]]:
        """Return mean loss, gradient norm and parts since the sums were cleared; synchronises."""
        loss, count, norm, *parts = self.sums.tolist()
        named = {name: part / count for name, part in zip(self.part_names, parts, strict=True)}
        return loss / count, norm / self.num_summed, named

    def count(self) -> float:
        """Return how many items the loss has counted since the sums were cleared; synchronises."""
        return float(self.sums[_COUNT])

    def clear_sums(self) -> None:
        self.sums = torch.zeros(3 + len(self.part_names), dtype=torch.float64, device=self.processes.device)
        self.num_summed = 0
        self.diverged_at = torch.full((), _NEVER, dtype=torch.float64, device=self.processes.device)

    def finish(self, chosen: Mapping[str, Tensor] | None = None) -> nn.Module:
        """Apply the averages, and return the unsharded model, with the ``chosen`` parameters and buffers if
        given.
        """
        if chosen is not None:
            with torch.no_grad():
                for name, target in state_tensors(self.model).items():
                    target.copy_(sharded_like(chosen[name], target))
        elif self.average is not None:
            self.average.exchange()
        if self._unsharded is None:
            return self.model
        whole = {name: whole_tensor(tensor) for name, tensor in self.model.state_dict().items()}
        self._unsharded.load_state_dict(whole)
        return self._unsharded.to(self.processes.device)

    def _averaging_weight(self, step: int, plan: TrainSettings) -> float:
        if self.optim.average == "tail":
            # The average of the iterates, updated with each (Polyak and Juditsky 1992); before, the weights.
            begin = 1 - self.optim.tail_fraction
            return 1 / max(1, steps_past(begin, step + 1, steps=plan.steps, replans=plan.replans))
        horizon = self.optim.ema_fraction * planned_steps(step, steps=plan.steps, replans=plan.replans)
        return averaging_weight(step + 1, horizon)

    def _propagate(self, batch: Any) -> Tensor:
        """Backpropagate a step's single batch, and return its sums over all processes."""
        loss = self._loss(batch)
        sums = self._add_up(self._sums(loss))
        # DDP averages gradients over the processes, while the loss is divided by the count of all of them.
        mean = loss.total * (self.processes.world_size / sums[_COUNT].to(loss.total.dtype))
        torch.autograd.backward(mean)
        return sums

    def _propagate_parts(self, batches: Sequence[Any], nominal_count: int) -> Tensor:
        """Accumulate the gradients of several micro-batches, and return their sums over all processes.

        Their total count is known at the end only; until then a nominal one is used.
        """
        sums = torch.zeros((), dtype=torch.float64, device=self.processes.device)
        for number, batch in enumerate(batches, start=1):
            with nullcontext() if number == len(batches) else kept_gradients(self._called):
                loss = self._loss(batch)
                torch.autograd.backward(loss.total * (self.processes.world_size / nominal_count))
            sums = sums + self._sums(loss)
        sums = self._add_up(sums)
        self.optimisers.scale((nominal_count / sums[_COUNT]).float())
        return sums

    def _add_up(self, sums: Tensor) -> Tensor:
        """Sum over all processes; a step without items (images without boxes) counts as one item."""
        sums = self.processes.add_up(sums)
        sums[_COUNT].clamp_(min=1)
        return sums

    def _loss(self, batch: Any) -> Loss:
        is_stand_in, device = isinstance(batch, StandIn), self.processes.device
        moved = (batch.batch if is_stand_in else batch).to(device)
        with autocast(self.settings.precision, device):
            loss = self.objective.loss(self._called, moved)
        if not is_stand_in:
            return loss
        parts = {name: torch.zeros_like(part) for name, part in loss.parts.items()}
        return Loss(loss.total * 0.0, torch.zeros_like(loss.count), parts)

    def _sums(self, loss: Loss) -> Tensor:
        self.part_names = tuple(sorted(loss.parts))
        parts = [loss.parts[name] for name in self.part_names]
        nothing = torch.zeros_like(loss.count)
        values = [loss.total.detach(), loss.count, nothing, *parts]
        return torch.stack([value.detach().double() for value in values])
