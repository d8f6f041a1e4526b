"""Which samples a step reads is a function of seed and step, for shuffled and for planned orders."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from vitrail.core.errors import DataError
from vitrail.data.stream import (
    PlannedOrder,
    Share,
    ShuffledOrder,
    StandIn,
    StepSampler,
    evaluation_batches,
    plan_epoch,
    seed_of,
    steps_of_epoch,
    training_batches,
)

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


class ListingObjective:
    """Batches that are the list of their samples, with the batch's own number at the end."""

    def collate(self, samples: Sequence[Any], generator: torch.Generator | None) -> list[tuple[int, float]]:
        """Add what the batch draws, as the sample -1."""
        own = 0.0 if generator is None else float(torch.rand((), generator=generator))
        return [*samples, (-1, own)]


def stream(source: Any = None, *, start: int = 0, stop: int = 13, **changes: int) -> list[Any]:
    options = {"seed": 5, "num_workers": 0, "batch_size": 8} | changes
    source = LongSource() if source is None else source
    return list(training_batches(source, ListingObjective(), start_step=start, num_steps=stop, **options))


def indices(batch: Any) -> list[int]:
    return [index for index, _ in batch[:-1]]


def test_the_sampler_says_step_and_slot_of_each_draw() -> None:
    shares = list(StepSampler(ShuffledOrder(5, 4, seed=1), 2, 4, rank=1, world_size=2))
    assert [[(draw.step, draw.slot) for draw in share.draws] for share in shares] == [
        [(2, 2), (2, 3)],
        [(3, 2), (3, 3)],
    ]
    assert all(isinstance(share, Share) and 0 <= draw.sample < 5 for share in shares for draw in share.draws)


def test_steps_walk_through_the_plans_of_the_epochs() -> None:
    source = LongSource()
    plans = [
        source.plan_batches(8, torch.Generator().manual_seed(seed_of("epoch", 5, epoch)))
        for epoch in range(4)
    ]
    assert len({len(plan) for plan in plans}) > 1, "epochs of one length would hide a wrong step"
    expected = list(itertools.chain(*plans))
    assert [indices(batch) for batch in stream(stop=len(expected))] == expected
    assert plan_epoch(source, 8, 5, 2) == plans[2]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_planned_run_resumed_at_a_step_sees_the_tail_of_the_whole_run(num_workers: int) -> None:
    whole = stream(stop=20)
    assert stream(start=11, stop=20, num_workers=num_workers) == whole[11:]
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
    shares = [stream(rank=rank, world_size=world_size, accumulate=accumulate) for rank in range(world_size)]
    num_stand_ins = 0
    for step, whole in enumerate(stream()):
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
    own = [batch[-1][1] for batch in stream(LongSource([1] * 16), accumulate=3)]
    assert len(set(own)) == len(own) == 39
    assert own[::3] == [batch[-1][1] for batch in stream(LongSource([1] * 16))]


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
    stream(source, stop=1)
    assert source.calls[:2] == ["prepare", "plan"]
    source.calls.clear()
    list(evaluation_batches(source, ListingObjective(), batch_size=8))
    assert source.calls == ["prepare", "plan"]


def test_a_source_that_plans_nothing_is_refused() -> None:
    with pytest.raises(DataError, match="no training batch of size 8 can be made of 0 samples"):
        stream(LongSource(()))


def test_an_epoch_has_as_many_steps_as_its_plan_or_as_samples_fill() -> None:
    source = LongSource()
    assert steps_of_epoch(source, 8, 5) == len(plan_epoch(source, 8, 5, 0))
    assert steps_of_epoch(_Plain(), 4, 5) == 1.75


class _Plain:
    """Samples without a plan."""

    def __len__(self) -> int:
        return 7

    def load(self, index: int, generator: torch.Generator | None) -> tuple[int, float]:
        """Return the index and a random number."""
        return LongSource().load(index, generator)


# Printed by the version before sources could plan their batches (commit 98b4a92), seed 5.
RECORDED = {
    (0, 1): [
        [
            (4, 0.8191542625427246),
            (0, 0.11561310291290283),
            (3, 0.9666339159011841),
            (-1, 0.9514676332473755),
        ],
        [
            (6, 0.24152135848999023),
            (1, 0.5092793703079224),
            (2, 0.9250838160514832),
            (-1, 0.06285971403121948),
        ],
        [
            (5, 0.31129956245422363),
            (2, 0.32237982749938965),
            (1, 0.8378143310546875),
            (-1, 0.050169408321380615),
        ],
    ],
    (1, 2): [
        [(0, 0.11561310291290283), (3, 0.9666339159011841), (-1, 0.7309041619300842)],
        [(1, 0.5092793703079224), (2, 0.9250838160514832), (-1, 0.7774830460548401)],
        [(2, 0.32237982749938965), (1, 0.8378143310546875), (-1, 0.6641414165496826)],
    ],
}


@pytest.mark.parametrize(("rank", "world_size"), RECORDED)
def test_a_source_without_plans_is_read_as_it_always_was(rank: int, world_size: int) -> None:
    batches = stream(_Plain(), batch_size=3, stop=3, rank=rank, world_size=world_size)
    assert batches == RECORDED[rank, world_size]
