"""The stream of batches is a function of seed and step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from vitrail.core.errors import DataError
from vitrail.data.stream import evaluation_batches, seed_of, training_batches


class NoisySource:
    """Samples that show their index and one draw of their generator."""

    def __init__(self, length: int, broken: int | None = None) -> None:
        self.length, self.broken, self.num_prepared = length, broken, 0

    def __len__(self) -> int:
        return self.length

    def prepare(self) -> None:
        """Count the calls."""
        self.num_prepared += 1

    def load(self, index: int, generator: torch.Generator | None) -> tuple[int, float]:
        """Return the index and a random number."""
        if index == self.broken:
            raise DataError("seven.jpg is empty", expected="an image", remedy="Remove it")
        return index, 0.0 if generator is None else float(torch.rand((), generator=generator))


class StackingObjective:
    """Batches that show one draw of the batch's generator."""

    def collate(self, samples: Sequence[Any], generator: torch.Generator | None) -> torch.Tensor:
        """Stack the pairs, and add a row with the batch's own random number."""
        own = 0.0 if generator is None else float(torch.rand((), generator=generator))
        return torch.tensor([*samples, (-1, own)], dtype=torch.float64)


def stream(
    length: int = 7, batch_size: int = 3, start: int = 0, stop: int = 9, **changes: int
) -> list[torch.Tensor]:
    options = {"seed": 5, "num_workers": 0} | changes
    return list(
        training_batches(
            NoisySource(length),
            StackingObjective(),
            batch_size=batch_size,
            start_step=start,
            num_steps=stop,
            **options,
        )
    )


def test_two_workers_load_the_same_batches_as_none() -> None:
    here, there = stream(num_workers=0), stream(num_workers=2)
    assert len(here) == 9
    assert all(torch.equal(one, other) for one, other in zip(here, there, strict=True))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_run_resumed_at_a_step_sees_the_tail_of_the_whole_run(num_workers: int) -> None:
    whole, tail = stream(), stream(start=4, num_workers=num_workers)
    assert len(tail) == 5
    assert all(torch.equal(one, other) for one, other in zip(whole[4:], tail, strict=True))


def test_another_seed_gives_another_order_and_other_variations() -> None:
    one, other = torch.stack(stream(seed=5)), torch.stack(stream(seed=6))
    assert not torch.equal(one[..., 0], other[..., 0])
    assert not one[:, :3, 1].flatten().unsqueeze(0).eq(other[:, :3, 1].flatten().unsqueeze(1)).any()


def test_every_epoch_shows_every_sample_once_in_another_order() -> None:
    places = torch.cat([batch[:-1, 0] for batch in stream(length=7, batch_size=3, stop=14)]).long()
    epochs = places.view(6, 7)
    assert all(sorted(epoch.tolist()) == list(range(7)) for epoch in epochs)
    assert len({tuple(epoch.tolist()) for epoch in epochs}) > 1


def test_a_batch_larger_than_the_source_repeats_samples_with_other_variations() -> None:
    (batch,) = stream(length=2, batch_size=5, stop=1)
    assert set(Counter(batch[:-1, 0].tolist()).values()) == {2, 3}
    assert len(set(batch[:-1, 1].tolist())) == 5


def test_no_two_steps_draw_the_same_numbers() -> None:
    numbers = torch.cat([batch[:, 1] for batch in stream(stop=20)]).tolist()
    assert len(set(numbers)) == len(numbers)


@pytest.mark.parametrize("world_size", [2, 3])
def test_processes_share_the_batch_of_one_process(world_size: int) -> None:
    alone = stream(batch_size=5)
    shares = [stream(batch_size=5, rank=rank, world_size=world_size) for rank in range(world_size)]
    for step, whole in enumerate(alone):
        joined = torch.cat([share[step][:-1] for share in shares])
        assert torch.equal(joined, whole[:-1])


def test_processes_vary_their_batches_differently() -> None:
    first, second = (stream(batch_size=4, rank=rank, world_size=2) for rank in range(2))
    assert all(one[-1, 1] != other[-1, 1] for one, other in zip(first, second, strict=True))


@pytest.mark.parametrize(("world_size", "num_workers"), [(1, 0), (2, 0), (3, 0), (1, 2)])
def test_evaluation_covers_each_sample_once_and_unvaried(world_size: int, num_workers: int) -> None:
    batches = [
        batch
        for rank in range(world_size)
        for batch in evaluation_batches(
            NoisySource(11),
            StackingObjective(),
            batch_size=2,
            num_workers=num_workers,
            rank=rank,
            world_size=world_size,
        )
    ]
    seen = torch.cat([batch[:-1] for batch in batches])
    assert sorted(seen[:, 0].tolist()) == list(range(11))
    assert not torch.cat(batches)[:, 1].any()


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_unreadable_sample_raises_its_own_error_from_any_process(num_workers: int) -> None:
    batches = training_batches(
        NoisySource(3, broken=1),
        StackingObjective(),
        batch_size=3,
        seed=0,
        start_step=0,
        num_steps=1,
        num_workers=num_workers,
    )
    with pytest.raises(DataError, match=r"^seven.jpg is empty. Expected an image. Remove it.$"):
        next(batches)


def test_a_source_is_prepared_once_before_loading() -> None:
    source = NoisySource(3)
    list(evaluation_batches(source, StackingObjective(), batch_size=1))
    assert source.num_prepared == 1


def test_seeds_depend_on_every_part_and_its_place() -> None:
    seeds = {seed_of("sample", 1, 2), seed_of("sample", 2, 1), seed_of("batch", 1, 2), seed_of("sample", 12)}
    assert len(seeds) == 4
    assert all(0 <= seed < 2**63 for seed in seeds)
