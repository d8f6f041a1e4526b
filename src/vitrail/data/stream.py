"""Batches as a function of the seed and the step, whoever loads them.

The order of an epoch and the augmentation of a sample or a batch are each drawn from a generator seeded for
that purpose. No state is carried along, so a run that is resumed at step s, or that uses more or fewer
worker processes, sees the same batches.
"""

from __future__ import annotations

import hashlib
import struct
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch.utils.data import DataLoader, Dataset

from vitrail.core.errors import DataError, VitrailError

PREFETCHED_BATCHES = 4  # per worker
_PLANS_KEPT = 2  # a run reads one epoch after the other


@runtime_checkable
class SampleSource(Protocol):
    """A finite, indexable collection of samples, safe to use from worker processes."""

    def __len__(self) -> int: ...

    def load(self, index: int, generator: torch.Generator | None) -> Any:
        """Return one sample; with a generator, augmented for training."""


@runtime_checkable
class BatchedSource(SampleSource, Protocol):
    """A source whose samples differ in size, and which therefore plans its own batches."""

    def plan_batches(self, batch_size: int, generator: torch.Generator | None) -> list[list[int]]:
        """Divide the samples of one epoch into non-empty batches of sample indices.

        Args:
            batch_size: upper bound on a batch, in the unit of the source, such as tokens.
            generator: draws the order of the samples and of the batches; without one, every sample appears.
        """


class Share(NamedTuple):
    """What one process reads at once: its part of a step, or one micro-batch of that part."""

    step: int
    samples: dict[int, int]
    """Index of the sample to load by its slot, its position within the global batch; not empty."""
    part: int
    """Index of the micro-batch within the step."""
    is_stand_in: bool
    """Whether no sample is left for this share, so that the step's first one stands in and must not count."""


class ShuffledOrder:
    """An endless sequence, one fresh permutation of all samples per epoch.

    Step s reads positions ``s * batch_size`` to ``(s + 1) * batch_size``.

    Args:
        batch_size: samples of a step; may exceed ``num_samples``.
    """

    def __init__(self, num_samples: int, batch_size: int, seed: int) -> None:
        self.num_samples, self.batch_size, self.seed = num_samples, batch_size, seed

    def samples_of(self, step: int) -> list[int]:
        first = step * self.batch_size
        places = (divmod(index, self.num_samples) for index in range(first, first + self.batch_size))
        return [_permutation(self.num_samples, self.seed, epoch)[position] for epoch, position in places]


class PlannedOrder:
    """The batches that a source plans for each epoch, one after the other.

    Epochs differ in length, so the first use at a late step plans every epoch before it, each once.

    Args:
        batch_size: upper bound on a batch, in the unit of the source.
        seed: determines, with the number of an epoch, its plan.

    Raises:
        DataError: the source plans no batch at all.
    """

    def __init__(self, source: BatchedSource, batch_size: int, seed: int) -> None:
        self._plan = lru_cache(_PLANS_KEPT)(partial(plan_epoch, source, batch_size, seed))
        self._ends: list[int] = []  # the step after the last one of each epoch planned so far

    def samples_of(self, step: int) -> list[int]:
        while not self._ends or self._ends[-1] <= step:
            num_before = self._ends[-1] if self._ends else 0
            self._ends.append(num_before + len(self._plan(len(self._ends))))
        epoch = bisect_right(self._ends, step)
        start = self._ends[epoch - 1] if epoch else 0
        return self._plan(epoch)[step - start]


Order = ShuffledOrder | PlannedOrder


def plan_shares(
    order: Order, start_step: int, num_steps: int, rank: int, world_size: int, accumulate: int
) -> Iterator[Share]:
    """Divide the samples of each step among processes and micro-batches.

    Each process takes a contiguous share of a step, and each of its micro-batches a contiguous part of that.
    Neither changes which samples a step has, nor how they are augmented.
    """
    for step in range(start_step, num_steps):
        samples = order.samples_of(step)
        slots = _part(range(len(samples)), rank, world_size)
        for part in range(accumulate):
            own = _part(slots, part, accumulate)
            yield Share(step, {slot: samples[slot] for slot in own or (0,)}, part, is_stand_in=not own)


def steps_of_epoch(source: SampleSource, batch_size: int, seed: int) -> float:
    """Return the steps per epoch; of a source that plans its batches, in the first epoch."""
    if isinstance(source, BatchedSource):
        return float(len(plan_epoch(source, batch_size, seed, 0)))
    return len(source) / batch_size


def plan_epoch(source: BatchedSource, batch_size: int, seed: int, epoch: int) -> list[list[int]]:
    """Plan the batches of an epoch as a function of the seed and its number.

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


def _part(slots: range, number: int, parts: int) -> range:
    """Return one of several contiguous parts, of sizes as even as can be."""
    return slots[len(slots) * number // parts : len(slots) * (number + 1) // parts]


@lru_cache(maxsize=4)  # a batch touches few epochs at a time
def _permutation(num_samples: int, seed: int, epoch: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed_of("epoch", seed, epoch))
    return torch.randperm(num_samples, generator=generator).tolist()


@runtime_checkable
class Collator(Protocol):
    """The one method of a collator that loading needs."""

    def collate(self, samples: Sequence[Any], generator: torch.Generator | None) -> Any: ...


@runtime_checkable
class Preparable(Protocol):
    """A source with work to do once, before worker processes share it."""

    def prepare(self) -> None: ...


class StandIn(NamedTuple):
    """A batch that this process computes only because the others compute theirs; it must not count.

    A step with fewer samples than shares leaves some shares empty, while all processes must run the model
    equally often.
    """

    batch: Any


def training_batches(
    source: SampleSource,
    collator: Collator,
    *,
    batch_size: int,
    seed: int,
    start_step: int,
    num_steps: int,
    num_workers: int,
    rank: int = 0,
    world_size: int = 1,
    accumulate: int = 1,
) -> Iterator[Any]:
    """Yield this process's batches for the steps from ``start_step`` up to ``num_steps``.

    There are ``accumulate`` batches per step, one after the other. If the step has too few samples to give
    every process and every batch one, a ``StandIn`` comes instead.

    Args:
        source: not empty.
        batch_size: size of a step over all processes and micro-batches together: a number of samples, or of
            what a ``BatchedSource`` counts.
        seed: determines everything, together with the step.
        start_step: first step, above zero when a run is resumed.
        num_steps: step after the last one.
        num_workers: loading processes; 0 loads in this one.
        accumulate: micro-batches into which this process's share of a step is divided.

    Raises:
        DataError: a sample cannot be read, or the source plans no batch.
    """
    if isinstance(source, BatchedSource):
        order: Order = PlannedOrder(source, batch_size, seed)
    else:
        order = ShuffledOrder(len(source), batch_size, seed)
    shares = plan_shares(order, start_step, num_steps, rank, world_size, accumulate)
    return _load(source, partial(_training_batch, source, collator, seed, rank), shares, num_workers)


def evaluation_batches(
    source: SampleSource,
    collator: Collator,
    *,
    batch_size: int,
    num_workers: int = 0,
    rank: int = 0,
    world_size: int = 1,
) -> Iterator[Any]:
    """Yield every sample of this process's share once without augmentation, in order or as planned.

    Args:
        batch_size: of one batch in this process: a number of samples, or of what a ``BatchedSource`` counts.
        num_workers: loading processes; 0 loads in this one.
        world_size: number of processes; each takes every ``world_size``-th sample, or planned batch.

    Raises:
        DataError: a sample cannot be read.
    """
    keys = _evaluation_keys(source, batch_size, rank, world_size)
    return _load(source, partial(_evaluation_batch, source, collator), keys, num_workers)


def _evaluation_keys(
    source: SampleSource, batch_size: int, rank: int, world_size: int
) -> Iterator[list[int]]:
    """Yield the indices of each batch; a source is asked for its plan when the first one is needed."""
    if isinstance(source, BatchedSource):
        yield from source.plan_batches(batch_size, None)[rank::world_size]
        return
    indices = range(rank, len(source), world_size)
    for start in range(0, len(indices), batch_size):
        yield list(indices[start : start + batch_size])


def _training_batch(source: SampleSource, collator: Collator, seed: int, rank: int, share: Share) -> Any:
    generator = torch.Generator()
    samples = []
    for slot, index in share.samples.items():
        generator.manual_seed(seed_of("sample", seed, share.step, slot, index))
        samples.append(source.load(index, generator))
    further = (share.part,) if share.part else ()  # a step in one batch is augmented as without parts
    generator.manual_seed(seed_of("batch", seed, share.step, rank, *further))
    batch = collator.collate(samples, generator)
    return StandIn(batch) if share.is_stand_in else batch


def _evaluation_batch(source: SampleSource, collator: Collator, indices: list[int]) -> Any:
    return collator.collate([source.load(index, None) for index in indices], None)


class _Batches(Dataset[Any]):
    """Batches by their keys, and user errors as values: a worker's exception arrives as another type."""

    def __init__(self, load: Callable[[Any], Any]) -> None:
        self.load = load

    def __getitems__(self, keys: Any) -> Any:
        try:
            return self.load(keys)
        except VitrailError as error:
            return error


def _load(
    source: SampleSource, load: Callable[[Any], Any], keys: Iterable[Any], num_workers: int
) -> Iterator[Any]:
    if isinstance(source, Preparable):
        source.prepare()
    batches = _Batches(load)
    if num_workers:
        loaded: Iterable[Any] = DataLoader(
            batches,
            batch_sampler=keys,
            num_workers=num_workers,
            collate_fn=_unchanged,
            prefetch_factor=PREFETCHED_BATCHES,
        )
    else:
        loaded = map(batches.__getitems__, keys)
    for batch in loaded:
        if isinstance(batch, VitrailError):
            raise batch
        yield batch


def _unchanged(batch: Any) -> Any:
    return batch
