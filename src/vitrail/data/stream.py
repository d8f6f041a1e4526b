"""Batches as a function of the seed and the step, whoever loads them.

The order of an epoch and the augmentation of a sample or a batch are each drawn from a generator seeded for
that purpose. No state is carried along, so a run that is resumed at step s, or that uses more or fewer
worker processes, sees the same batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch.utils.data import DataLoader, Dataset

from vitrail.core import errors
from vitrail.core.errors import VitrailError
from vitrail.data.sampling import BatchedSource, SampleSource, Share, StepSampler, order_of, seed_of

__all__ = [
    "BatchedSource",
    "Collator",
    "Preparable",
    "SampleSource",
    "StandIn",
    "evaluation_batches",
    "seed_of",
    "training_batches",
]

PREFETCHED_BATCHES = 4  # per worker


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
    order = order_of(source, batch_size, seed)
    sampler = StepSampler(order, start_step, num_steps, rank, world_size, accumulate)
    return _load(_TrainingBatches(source, collator, seed, rank), sampler, num_workers)


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
    return _load(_EvaluationBatches(source, collator), keys, num_workers)


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


class _TrainingBatches(Dataset[Any]):
    def __init__(self, source: SampleSource, collator: Collator, seed: int, rank: int) -> None:
        self.source, self.collator, self.seed, self.rank = source, collator, seed, rank

    def __getitems__(self, share: Share) -> Any:
        generator = torch.Generator()
        samples = []
        for index, step, slot in share.draws:
            generator.manual_seed(seed_of("sample", self.seed, step, slot, index))
            samples.append(self.source.load(index, generator))
        further = (
            (share.part,) if share.part else ()
        )  # a step in one batch is augmented as it was without parts
        generator.manual_seed(seed_of("batch", self.seed, share.draws[0].step, self.rank, *further))
        batch = self.collator.collate(samples, generator)
        return StandIn(batch) if share.is_stand_in else batch


class _EvaluationBatches(Dataset[Any]):
    def __init__(self, source: SampleSource, collator: Collator) -> None:
        self.source, self.collator = source, collator

    def __getitems__(self, indices: list[int]) -> Any:
        return self.collator.collate([self.source.load(index, None) for index in indices], None)


class _Guarded(Dataset[Any]):
    """Return a user error as a value: what a worker raises arrives as another type and text."""

    def __init__(self, batches: _Batches) -> None:
        self.batches = batches

    def __getitems__(self, keys: Any) -> Any:
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
    source: SampleSource

    def __getitems__(self, keys: Any) -> Any: ...


def _load(batches: _Batches, keys: Iterable[Any], num_workers: int) -> Iterator[Any]:
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
