"""How fast a training goes, without what it does beside training."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from vitrail.data.stream import StandIn
from vitrail.train.step import TrainStep


class Rates(NamedTuple):
    """What all processes together did in a second."""

    samples_per_s: float
    """Samples that were read."""
    items_per_s: float
    """What the loss counts: samples, tokens."""


class Meter:
    """Counts samples and items from one reading to the next.

    Args:
        train_step: counts the items; what it has counted so far, before the run was resumed, is left out.
        clock: tells seconds.
    """

    def __init__(self, train_step: TrainStep, clock: Callable[[], float] = time.monotonic) -> None:
        self._train_step, self._clock = train_step, clock
        self._since, self._num_samples, self._former_items = clock(), 0, train_step.count()

    def add(self, batches: Sequence[Any]) -> None:
        """Count the samples that this process read for a step."""
        self._num_samples += sum(len(batch) for batch in batches if not isinstance(batch, StandIn))

    def pause(self, seconds: float) -> None:
        """Leave time out: something else was done."""
        self._since += seconds

    def read(self) -> Rates:
        """Return the rates since the last reading; all processes call this, and the sums are cleared then."""
        now = self._clock()
        seconds = max(now - self._since, 1e-9)
        num_samples = torch.tensor([float(self._num_samples)], dtype=torch.float64)
        samples = float(self._train_step.processes.add_up(num_samples))
        items = self._train_step.count() - self._former_items
        self._since, self._num_samples, self._former_items = now, 0, 0.0
        return Rates(samples / seconds, items / seconds)
