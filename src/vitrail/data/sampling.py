"""Which samples each step reads, as a function of the seed and the step alone."""

from __future__ import annotations

import hashlib
import struct
from bisect import bisect_right
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch.utils.data import Sampler

from vitrail.core.errors import DataError

_PLANS_KEPT = 2  # a run reads one epoch after the other


@runtime_checkable
class SampleSource(Protocol):
    """A finite, indexable collection of samples, safe to use from worker processes."""

    def __len__(self) -> int: ...

    def load(self, index: int, generator: torch.Generator | None) -> Any:
        """Return one sample; with a generator, augmented for training."""
        ...


@runtime_checkable
class BatchedSource(SampleSource, Protocol):
    """A source whose samples differ in size, and which therefore says itself what belongs in a batch."""

    def plan_batches(self, batch_size: int, generator: torch.Generator | None) -> list[list[int]]:
        """Divide the samples of one epoch into batches.

        Args:
            batch_size: how large a batch may be, in the unit of the source, such as tokens.
            generator: draws the order of the samples and of the batches; without one, every sample appears.

        Returns:
            Indices of samples, none of the batches empty.
        """
        ...


class Draw(NamedTuple):
    """One place of one global batch."""

    sample: int
    """Index of the sample to load."""
    step: int
    """Step of the run."""
    slot: int
    """Place within the global batch of that step."""


class Share(NamedTuple):
    """What one process reads at once: its part of a step, or one of several parts of that."""

    draws: list[Draw]
    """Not empty."""
    part: int
    """Number of the micro-batch within the step, from 0."""
    is_stand_in: bool
    """Whether the step has no sample left for this share, so that its first one stands here and must not
    count."""


@runtime_checkable
class Order(Protocol):
    """Says for each step which samples all processes together read."""

    def samples_of(self, step: int) -> list[int]:
        """Return the indices of the step's samples."""
        ...


class ShuffledOrder:
    """One endless sequence, a fresh permutation of all samples for each epoch after the other.

    Step s reads places ``s * batch_size`` to ``(s + 1) * batch_size``.

    Args:
        num_samples: length of the source.
        batch_size: samples of a step; may exceed the number of samples.
        seed: seed of the permutations.
    """

    def __init__(self, num_samples: int, batch_size: int, seed: int) -> None:
        self.num_samples, self.batch_size, self.seed = num_samples, batch_size, seed

    def samples_of(self, step: int) -> list[int]:
        """Return the indices of the step's samples."""
        return [self._sample_at(step * self.batch_size + slot) for slot in range(self.batch_size)]

    def _sample_at(self, place: int) -> int:
        epoch, position = divmod(place, self.num_samples)
        return _permutation(self.num_samples, self.seed, epoch)[position]


class PlannedOrder:
    """The batches that a source plans for each epoch, one after the other.

    Epochs differ in length, so the first use at a late step plans every epoch before it, each once.

    Args:
        source: plans its batches.
        batch_size: how large a batch may be, in the unit of the source.
        seed: together with the number of an epoch it determines its plan.

    Raises:
        DataError: the source plans no batch at all.
    """

    def __init__(self, source: BatchedSource, batch_size: int, seed: int) -> None:
        self.source, self.batch_size, self.seed = source, batch_size, seed
        self._ends: list[int] = []  # the step after the last one of each epoch planned so far
        self._plans: dict[int, list[list[int]]] = {}

    def samples_of(self, step: int) -> list[int]:
        """Return the indices of the step's samples."""
        while not self._ends or self._ends[-1] <= step:
            num_before = self._ends[-1] if self._ends else 0
            self._ends.append(num_before + len(self._plan(len(self._ends))))
        epoch = bisect_right(self._ends, step)
        start = self._ends[epoch - 1] if epoch else 0
        return self._plan(epoch)[step - start]

    def _plan(self, epoch: int) -> list[list[int]]:
        if epoch not in self._plans:
            while len(self._plans) >= _PLANS_KEPT:
                self._plans.pop(next(iter(self._plans)))
            self._plans[epoch] = plan_epoch(self.source, self.batch_size, self.seed, epoch)
        return self._plans[epoch]


class StepSampler(Sampler[Share]):
    """Divide the samples of each step among processes and micro-batches.

    Each process takes a contiguous share of a step, and each of its micro-batches a contiguous part of that.
    Neither changes which samples a step has, nor how they vary.

    Args:
        order: says which samples a step has.
        start_step: first step to yield.
        num_steps: step after the last one.
        rank: this process.
        world_size: number of processes.
        accumulate: micro-batches of a step.
    """

    def __init__(
        self,
        order: Order,
        start_step: int,
        num_steps: int,
        rank: int = 0,
        world_size: int = 1,
        accumulate: int = 1,
    ) -> None:
        self.order, self.start_step, self.num_steps = order, start_step, num_steps
        self.rank, self.world_size, self.accumulate = rank, world_size, accumulate

    def __len__(self) -> int:
        return max(self.num_steps - self.start_step, 0) * self.accumulate

    def __iter__(self) -> Iterator[Share]:
        for step in range(self.start_step, self.num_steps):
            samples = self.order.samples_of(step)
            slots = _part(range(len(samples)), self.rank, self.world_size)
            for part in range(self.accumulate):
                own = _part(slots, part, self.accumulate)
                draws = [Draw(samples[slot], step, slot) for slot in own or range(1)]
                yield Share(draws, part, is_stand_in=not own)


def order_of(source: SampleSource, batch_size: int, seed: int) -> Order:
    """Return the order in which a training reads a source: as the source plans it, or shuffled."""
    if isinstance(source, BatchedSource):
        return PlannedOrder(source, batch_size, seed)
    return ShuffledOrder(len(source), batch_size, seed)


def steps_of_epoch(source: SampleSource, batch_size: int, seed: int) -> float:
    """Return how many steps show every sample once; of a source that plans its batches, in the first epoch.

    Args:
        source: the samples, prepared.
        batch_size: as the training will use it.
        seed: as the training will use it.
    """
    if isinstance(source, BatchedSource):
        return float(len(plan_epoch(source, batch_size, seed, 0)))
    return len(source) / batch_size


def plan_epoch(source: BatchedSource, batch_size: int, seed: int, epoch: int) -> list[list[int]]:
    """Return the batches of an epoch, a function of the seed and its number.

    Raises:
        DataError: there are none.
    """
    plan = source.plan_batches(batch_size, torch.Generator().manual_seed(seed_of("epoch", seed, epoch)))
    if not plan:
        raise DataError(
            f"no training batch of size {batch_size} can be made of {len(source)} samples",
            expected="at least one sample that may be trained on",
            remedy="Raise the limit on the length of samples, or add data",
        )
    return plan


def seed_of(*parts: int | str) -> int:
    """Return a 63-bit seed that depends on every part, such as ``seed_of("sample", seed, step, slot)``."""
    text = "\0".join(str(part) for part in parts)
    return struct.unpack("<Q", hashlib.blake2b(text.encode(), digest_size=8).digest())[0] >> 1


def _part(places: range, number: int, parts: int) -> range:
    """Return one of several contiguous parts, of sizes as even as can be."""
    return places[len(places) * number // parts : len(places) * (number + 1) // parts]


@lru_cache(maxsize=4)  # a batch touches few epochs at a time
def _permutation(num_samples: int, seed: int, epoch: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed_of("epoch", seed, epoch))
    return torch.randperm(num_samples, generator=generator).tolist()
