"""Training throughput, excluding validation and saving."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from vitrail.data.stream import StandIn
from vitrail.train.step import TrainStep


class Rates(NamedTuple):
    """Throughput over all processes."""

    samples_per_s: float
    items_per_s: float
    """In the unit of the loss: samples, tokens."""


class Meter:
    """Counts samples and items between readings.

    Args:
        train_step: counts the items; items counted before resuming are excluded.
    """

    def __init__(self, train_step: TrainStep, clock: Callable[[], float] = time.monotonic) -> None:
        self._train_step, self._clock = train_step, clock
        self._since, self._num_samples, self._former_items = clock(), 0, train_step.count()

    def add(self, batches: Sequence[Any]) -> None:
        """Count the samples of this process's micro-batches."""
        self._num_samples += sum(len(batch) for batch in batches if not isinstance(batch, StandIn))

    def pause(self, seconds: float) -> None:
        self._since += seconds

    def read(self) -> Rates:
        """Return the rates since the last reading; collective, and clears the sums."""
        now = self._clock()
        seconds = max(now - self._since, 1e-9)
        num_samples = torch.tensor([float(self._num_samples)], dtype=torch.float64)
        samples = float(self._train_step.processes.add_up(num_samples))
        items = self._train_step.count() - self._former_items
        self._since, self._num_samples, self._former_items = now, 0, 0.0
        return Rates(samples / seconds, items / seconds)
