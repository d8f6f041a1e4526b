"""The stream of batches is a function of seed and step."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from vitrail.core.errors import DataError
from vitrail.data.images import TooManyPixelsError
from vitrail.data.stream import (
    PlannedOrder,
    Share,
    ShuffledOrder,
    StandIn,
    evaluation_batches,
    plan_epoch,
    plan_shares,
    seed_of,
    steps_of_epoch,
    training_batches,
)


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
            raise TooManyPixelsError("seven.jpg is empty", expected="an image", remedy="Remove it")
        return index, 0.0 if generator is None else float(torch.rand((), generator=generator))


class ListingObjective:
    """Batches that are the list of their samples, with the batch's own number at the end."""

    def collate(self, samples: Sequence[Any], generator: torch.Generator | None) -> list[tuple[int, float]]:
        """Add what the batch draws, as the sample -1."""
        own = 0.0 if generator is None else float(torch.rand((), generator=generator))
        return [*samples, (-1, own)]


def planned_stream(source: Any = None, *, start: int = 0, stop: int = 13, **changes: int) -> list[Any]:
    options = {"seed": 5, "num_workers": 0, "batch_size": 8} | changes
    source = LongSource() if source is None else source
    return list(training_batches(source, ListingObjective(), start_step=start, num_steps=stop, **options))


def stream(length: int = 7, stop: int = 9, **changes: int) -> list[torch.Tensor]:
    """Return batches as rows of index and draw; the last row is the batch's own."""
    batches = planned_stream(NoisySource(length), stop=stop, **{"batch_size": 3} | changes)
    return [torch.tensor(batch, dtype=torch.float64) for batch in batches]


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
        torch.tensor(batch)
        for rank in range(world_size)
        for batch in evaluation_batches(
            NoisySource(11),
            ListingObjective(),
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
        ListingObjective(),
        batch_size=3,
        seed=0,
        start_step=0,
        num_steps=1,
        num_workers=num_workers,
    )
    with pytest.raises(TooManyPixelsError, match=r"^seven.jpg is empty. Expected an image. Remove it.$"):
        next(batches)


def test_a_source_is_prepared_once_before_loading() -> None:
    source = NoisySource(3)
    list(evaluation_batches(source, ListingObjective(), batch_size=1))
    assert source.num_prepared == 1


def test_seeds_depend_on_every_part_and_its_place() -> None:
    seeds = {seed_of("sample", 1, 2), seed_of("sample", 2, 1), seed_of("batch", 1, 2), seed_of("sample", 12)}
    assert len(seeds) == 4
    assert all(0 <= seed < 2**63 for seed in seeds)


LENGTHS = (3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5)


class LongSource:
    """Samples that have a length, at most so much of which goes into a batch; one alone exceeds it."""

    def __init__(self, lengths: Sequence[int] = LENGTHS) -> None:
        self.lengths, self.calls, self.num_plans = lengths, list[str](), 0

    def __len__(self) -> int:
        return len(self.lengths)

    def prepare(self) -> None:
        """Note the call."""
        self.calls.append("prepare")

    def load(self, index: int, generator: torch.Generator | None) -> tuple[int, float]:
        """Return the index and a random number."""
        return index, 0.0 if generator is None else float(torch.rand((), generator=generator))

    def plan_batches(self, batch_size: int, generator: torch.Generator | None) -> list[list[int]]:
        """Fill one batch after the other, in a random order or in that of the samples."""
        self.calls.append("plan")
        count = len(self.lengths)
        order = range(count) if generator is None else torch.randperm(count, generator=generator).tolist()
        batches: list[list[int]] = []
        for index in order:
            if batches and sum(self.lengths[at] for at in [*batches[-1], index]) <= batch_size:
                batches[-1].append(index)
            else:
                batches.append([index])
        return batches


def indices(batch: Any) -> list[int]:
    return [index for index, _ in batch[:-1]]


def test_the_sampler_says_step_and_slot_of_each_draw() -> None:
    shares = list(plan_shares(ShuffledOrder(5, 4, seed=1), 2, 4, rank=1, world_size=2, accumulate=1))
    assert [(share.step, [*share.samples]) for share in shares] == [(2, [2, 3]), (3, [2, 3])]
    assert all(
        isinstance(share, Share) and 0 <= sample < 5 for share in shares for sample in share.samples.values()
    )


def test_steps_walk_through_the_plans_of_the_epochs() -> None:
    source = LongSource()
    plans = [
        source.plan_batches(8, torch.Generator().manual_seed(seed_of("epoch", 5, epoch)))
        for epoch in range(4)
    ]
    assert len({len(plan) for plan in plans}) > 1, "epochs of one length would hide a wrong step"
    expected = list(itertools.chain(*plans))
    assert [indices(batch) for batch in planned_stream(stop=len(expected))] == expected
    assert plan_epoch(source, 8, 5, 2) == plans[2]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_planned_run_resumed_at_a_step_sees_the_tail_of_the_whole_run(num_workers: int) -> None:
    whole = planned_stream(stop=20)
    assert planned_stream(start=11, stop=20, num_workers=num_workers) == whole[11:]
    assert len({number for batch in whole for _, number in batch}) == sum(len(batch) for batch in whole)


def test_a_late_first_step_plans_each_epoch_once() -> None:
    source = LongSource()
    order = PlannedOrder(source, 8, seed=5)
    expected = PlannedOrder(LongSource(), 8, seed=5)
    assert order.samples_of(31) == [expected.samples_of(step) for step in range(32)][31]
    num_epochs = source.calls.count("plan")
    assert num_epochs == len(order._ends)
    order.samples_of(30)
    assert source.calls.count("plan") <= num_epochs + 1


@pytest.mark.parametrize(("world_size", "accumulate"), [(2, 1), (3, 1), (1, 2), (2, 3)])
def test_shares_join_to_the_step_and_where_none_is_left_something_stands_in(
    world_size: int, accumulate: int
) -> None:
    shares = [
        planned_stream(rank=rank, world_size=world_size, accumulate=accumulate) for rank in range(world_size)
    ]
    num_stand_ins = 0
    for step, whole in enumerate(planned_stream()):
        parts = [part for share in shares for part in share[step * accumulate : (step + 1) * accumulate]]
        assert len(parts) == world_size * accumulate
        counted = [part for part in parts if not isinstance(part, StandIn)]
        assert [sample for part in counted for sample in part[:-1]] == whole[:-1]
        stand_ins = [part.batch for part in parts if isinstance(part, StandIn)]
        assert all(indices(batch) == indices(whole)[:1] for batch in stand_ins)
        num_stand_ins += len(stand_ins)
    assert num_stand_ins > 0
    assert len(shares[0]) == 13 * accumulate


def test_micro_batches_draw_different_numbers_for_themselves() -> None:
    own = [batch[-1][1] for batch in planned_stream(LongSource([1] * 16), accumulate=3)]
    assert len(set(own)) == len(own) == 39
    assert own[::3] == [batch[-1][1] for batch in planned_stream(LongSource([1] * 16))]


@pytest.mark.parametrize(("world_size", "num_workers"), [(1, 0), (3, 0), (1, 2)])
def test_evaluation_takes_the_batches_that_are_planned(world_size: int, num_workers: int) -> None:
    shares = [
        evaluation_batches(
            LongSource(),
            ListingObjective(),
            batch_size=8,
            num_workers=num_workers,
            rank=rank,
            world_size=world_size,
        )
        for rank in range(world_size)
    ]
    batches = [batch for share in shares for batch in share]
    assert sorted(map(indices, batches)) == sorted(LongSource().plan_batches(8, None))
    assert not any(number for batch in batches for _, number in batch)


def test_a_source_is_prepared_before_it_plans() -> None:
    source = LongSource()
    planned_stream(source, stop=1)
    assert source.calls[:2] == ["prepare", "plan"]
    source.calls.clear()
    list(evaluation_batches(source, ListingObjective(), batch_size=8))
    assert source.calls == ["prepare", "plan"]


def test_a_source_that_plans_nothing_is_refused() -> None:
    with pytest.raises(DataError, match="no training batch of size 8 can be made of 0 samples"):
        planned_stream(LongSource(()))


def test_an_epoch_has_as_many_steps_as_its_plan_or_as_samples_fill() -> None:
    source = LongSource()
    assert steps_of_epoch(source, 8, 5) == len(plan_epoch(source, 8, 5, 0))
    assert steps_of_epoch(NoisySource(7), 4, 5) == 1.75


# Printed by the version before sources could plan their batches (commit 98b4a92), seed 5.
RECORDED = {
    (0, 1): [
        [(4, 0.8191542625427246), (0, 0.11561310291290283),
         (3, 0.9666339159011841), (-1, 0.9514676332473755)],
        [(6, 0.24152135848999023), (1, 0.5092793703079224),
         (2, 0.9250838160514832), (-1, 0.06285971403121948)],
        [(5, 0.31129956245422363), (2, 0.32237982749938965),
         (1, 0.8378143310546875), (-1, 0.050169408321380615)],
    ],
    (1, 2): [
        [(0, 0.11561310291290283), (3, 0.9666339159011841), (-1, 0.7309041619300842)],
        [(1, 0.5092793703079224), (2, 0.9250838160514832), (-1, 0.7774830460548401)],
        [(2, 0.32237982749938965), (1, 0.8378143310546875), (-1, 0.6641414165496826)],
    ],
}  # fmt: skip


@pytest.mark.parametrize(("rank", "world_size"), RECORDED)
def test_a_source_without_plans_is_read_as_it_always_was(rank: int, world_size: int) -> None:
    batches = planned_stream(NoisySource(7), batch_size=3, stop=3, rank=rank, world_size=world_size)
    assert batches == RECORDED[rank, world_size]
