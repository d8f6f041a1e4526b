"""Batches whose content is a function of the seed and the step, whoever loads them.

The order of an epoch, the variation of a sample and the variation of a batch are each drawn from a generator
that is seeded with what it is for. No state runs along, so a training run that is resumed at step s, or whose
samples are loaded by more or fewer worker processes, sees the same batches.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from vitrail import errors
from vitrail.errors import VitrailError

PREFETCHED_BATCHES = 4  # per worker


@runtime_checkable
class SampleSource(Protocol):
    """A finite, indexable collection of samples."""

    def __len__(self) -> int: ...

    def load(self, index: int, generator: torch.Generator | None) -> Any:
        """Return one sample, varied by the generator for training."""
        ...


@runtime_checkable
class Collator(Protocol):
    """The one method of a task that loading needs."""

    def collate(self, samples: Sequence[Any], generator: torch.Generator | None) -> Any:
        """Join samples into a batch."""
        ...


@runtime_checkable
class Preparable(Protocol):
    """A source that has work to do once, before worker processes share it."""

    def prepare(self) -> None:
        """Do that work."""
        ...


class Draw(NamedTuple):
    """One place of one global batch."""

    sample: int
    """Index of the sample to load."""
    step: int
    """Step of the run."""
    slot: int
    """Place within the global batch of that step."""


class StepSampler(Sampler[list[Draw]]):
    """Say which samples each step sees, as a function of seed and step alone.

    The run reads one endless sequence, a fresh permutation of all samples for each epoch after the other;
    step s reads places ``s * batch_size`` to ``(s + 1) * batch_size``. Each process takes a contiguous share.

    Args:
        num_samples: length of the source.
        batch_size: samples of a step over all processes together; may exceed the number of samples.
        seed: seed of the permutations.
        start_step: first step to yield.
        num_steps: step after the last one.
        rank: this process.
        world_size: number of processes.
    """

    def __init__(
        self,
        num_samples: int,
        batch_size: int,
        seed: int,
        start_step: int,
        num_steps: int,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        assert batch_size >= world_size, "a step has fewer samples than there are processes"
        self.num_samples, self.batch_size, self.seed = num_samples, batch_size, seed
        self.start_step, self.num_steps = start_step, num_steps
        self._slots = range(batch_size * rank // world_size, batch_size * (rank + 1) // world_size)

    def __len__(self) -> int:
        return max(self.num_steps - self.start_step, 0)

    def __iter__(self) -> Iterator[list[Draw]]:
        for step in range(self.start_step, self.num_steps):
            yield [Draw(self._sample_at(step * self.batch_size + slot), step, slot) for slot in self._slots]

    def _sample_at(self, place: int) -> int:
        epoch, position = divmod(place, self.num_samples)
        return _permutation(self.num_samples, self.seed, epoch)[position]


def training_batches(
    source: SampleSource,
    task: Collator,
    *,
    batch_size: int,
    seed: int,
    start_step: int,
    num_steps: int,
    num_workers: int,
    rank: int = 0,
    world_size: int = 1,
) -> Iterator[Any]:
    """Yield this process's batch for each step from ``start_step`` up to ``num_steps``.

    Args:
        source: the samples; not empty.
        task: joins samples.
        batch_size: samples of a step over all processes together.
        seed: together with the step it determines everything.
        start_step: first step, above zero when a run is resumed.
        num_steps: step after the last one.
        num_workers: processes that load; 0 loads in this one.
        rank: this process.
        world_size: number of processes.

    Raises:
        DataError: a sample cannot be read.
    """
    sampler = StepSampler(len(source), batch_size, seed, start_step, num_steps, rank, world_size)
    return _load(_TrainingBatches(source, task, seed, rank), sampler, num_workers)


def evaluation_batches(
    source: SampleSource,
    task: Collator,
    *,
    batch_size: int,
    num_workers: int = 0,
    rank: int = 0,
    world_size: int = 1,
) -> Iterator[Any]:
    """Yield every sample of this process's share once, in order and without variation.

    Args:
        source: the samples.
        task: joins samples.
        batch_size: samples of one batch in this process.
        num_workers: processes that load; 0 loads in this one.
        rank: this process.
        world_size: number of processes; each takes every ``world_size``-th sample.

    Raises:
        DataError: a sample cannot be read.
    """
    indices = range(rank, len(source), world_size)
    batches = [list(indices[start : start + batch_size]) for start in range(0, len(indices), batch_size)]
    return _load(_EvaluationBatches(source, task), batches, num_workers)


def seed_of(*parts: int | str) -> int:
    """Return a 63-bit seed that depends on every part, such as ``seed_of("sample", seed, step, slot)``."""
    text = "\0".join(str(part) for part in parts)
    return struct.unpack("<Q", hashlib.blake2b(text.encode(), digest_size=8).digest())[0] >> 1


class _TrainingBatches(Dataset[Any]):
    def __init__(self, source: SampleSource, task: Collator, seed: int, rank: int) -> None:
        self.source, self.task, self.seed, self.rank = source, task, seed, rank

    def __getitems__(self, draws: list[Draw]) -> Any:
        generator = torch.Generator()
        samples = []
        for index, step, slot in draws:
            generator.manual_seed(seed_of("sample", self.seed, step, slot, index))
            samples.append(self.source.load(index, generator))
        generator.manual_seed(seed_of("batch", self.seed, draws[0].step, self.rank))
        return self.task.collate(samples, generator)


class _EvaluationBatches(Dataset[Any]):
    def __init__(self, source: SampleSource, task: Collator) -> None:
        self.source, self.task = source, task

    def __getitems__(self, indices: list[int]) -> Any:
        return self.task.collate([self.source.load(index, None) for index in indices], None)


class _Guarded(Dataset[Any]):
    """Return a user error as a value: what a worker raises arrives as another type and text."""

    def __init__(self, batches: _Batches) -> None:
        self.batches = batches

    def __getitems__(self, keys: list[Any]) -> Any:
        try:
            return self.batches.__getitems__(keys)
        except VitrailError as error:
            return _Failure(type(error).__name__, error.given, error.expected, error.remedy)


class _Failure(NamedTuple):
    kind: str
    given: str
    expected: str
    remedy: str


@runtime_checkable
class _Batches(Protocol):
    """What turns the keys of a batch into the batch."""

    source: SampleSource

    def __getitems__(self, keys: list[Any]) -> Any: ...


def _load(batches: _Batches, keys: Sampler[list[Draw]] | list[list[int]], num_workers: int) -> Iterator[Any]:
    if isinstance(batches.source, Preparable):
        batches.source.prepare()
    if not num_workers:
        for batch_keys in keys:
            yield batches.__getitems__(batch_keys)
        return
    loader = DataLoader(
        _Guarded(batches),
        batch_sampler=keys,
        num_workers=num_workers,
        collate_fn=_unchanged,
        prefetch_factor=PREFETCHED_BATCHES,
    )
    for batch in loader:
        if isinstance(batch, _Failure):
            raise getattr(errors, batch.kind)(batch.given, expected=batch.expected, remedy=batch.remedy)
        yield batch


def _unchanged(batch: Any) -> Any:
    return batch


@lru_cache(maxsize=4)  # a batch touches few epochs at a time
def _permutation(num_samples: int, seed: int, epoch: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed_of("epoch", seed, epoch))
    return torch.randperm(num_samples, generator=generator).tolist()
