"""Batches: what waits is computed together, in sizes that pay."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from making.served_models import WAIT_S, Gate
from vitrail.core.errors import DataError
from vitrail.serve.batching import (
    GROUPS_KEPT,
    RETRIED_AFTER,
    TRIALS,
    BatchSizes,
    BatchWorker,
    Job,
    sizes_by_group,
)
from vitrail.serve.settings import ServeSettings
from vitrail.tasks.serving import RefusalError


def answer(works: Sequence[Any]) -> Sequence[Any]:
    if "bad" in works:
        raise DataError("bad", expected="good", remedy="Mend it")
    return [DataError("odd", expected="even", remedy="Add") if each == "odd" else each for each in works]


@pytest.fixture
def gate() -> Iterator[Gate]:
    made = Gate(answer)
    yield made
    made.may_go.set()


def hand_in(worker: BatchWorker, *works: Any, group: str | None = "all") -> list[Any]:
    with worker.reserve(len(works)) as submit:
        return [submit(Job(work, group)) for work in works]


def occupied(gate: Gate, **limits: Any) -> tuple[BatchWorker, Any]:
    """Return a worker that computes its first job already, and that job's answer."""
    worker = BatchWorker("gate", gate, ServeSettings(max_wait_ms=0, **limits))
    (first,) = hand_in(worker, "first")
    assert gate.has_begun.wait(WAIT_S)
    return worker, first


def test_what_waits_is_computed_together_in_order_and_in_full_batches(gate: Gate) -> None:
    worker, first = occupied(gate, max_batch=3)
    answers = hand_in(worker, 1, 2, 3, 4, 5)

    gate.may_go.set()

    assert [each.result(WAIT_S) for each in (first, *answers)] == ["first", 1, 2, 3, 4, 5]
    assert gate.batches == [["first"], [1, 2, 3], [4, 5]]


def test_only_jobs_of_a_group_are_joined_and_those_of_none_are_alone(gate: Gate) -> None:
    worker, _ = occupied(gate, max_batch=8)
    answers = [
        *hand_in(worker, 1, group="a"),
        *hand_in(worker, 2, group="b"),
        *hand_in(worker, 3, group="a"),
        *hand_in(worker, 4, 5, group=None),
    ]

    gate.may_go.set()

    assert [each.result(WAIT_S) for each in answers] == [1, 2, 3, 4, 5]
    assert gate.batches[1:] == [[1, 3], [2], [4], [5]]


def test_an_idle_model_waits_for_others_to_join() -> None:
    batches: list[int] = []
    settings = ServeSettings(max_batch=2, max_wait_ms=1000 * WAIT_S)
    worker = BatchWorker("patient", list, settings, lambda size, _: batches.append(size))

    answers = [*hand_in(worker, 1), *hand_in(worker, 2)]

    assert [each.result(WAIT_S) for each in answers] == [1, 2]
    assert batches == [2]


def test_an_idle_model_that_gains_nothing_by_others_does_not_wait_for_them() -> None:
    worker = BatchWorker("quick", list, ServeSettings(max_batch=2, max_wait_ms=2000 * WAIT_S))
    sizes = worker._sizes(hash("all"))
    for _ in range(TRIALS):
        for size in sizes.sizes:
            sizes.add(size, 0.1 * size)

    (alone,) = hand_in(worker, 1)

    assert alone.result(WAIT_S) == 1


def test_a_full_queue_refuses_and_says_when_to_come_again(gate: Gate) -> None:
    worker, _ = occupied(gate, queue=3)
    hand_in(worker, 1, 2)

    with pytest.raises(RefusalError, match="2 inputs wait") as refused, worker.reserve(2):
        pass
    with pytest.raises(RefusalError, match="at most 3 in one request") as never, worker.reserve(4):
        pass

    assert (refused.value.status, never.value.status) == (429, 413)
    assert refused.value.retry_after_s == 1
    assert len(hand_in(worker, 3)) == 1


def test_slots_that_were_not_used_are_released(gate: Gate) -> None:
    worker, _ = occupied(gate, queue=3)
    with worker.reserve(3) as submit:
        submit(Job(1, "all"))
        assert len(worker) == 3

    assert len(worker) == 1


def test_a_job_that_spoils_its_batch_spoils_no_other(gate: Gate) -> None:
    worker, _ = occupied(gate)
    answers = hand_in(worker, 1, "bad", 2, "odd")

    gate.may_go.set()

    assert answers[0].result(WAIT_S) == 1
    assert answers[2].result(WAIT_S) == 2
    with pytest.raises(DataError, match="Mend it"):
        answers[1].result(WAIT_S)
    with pytest.raises(DataError, match="even"):
        answers[3].result(WAIT_S)
    assert worker.is_alive


def test_what_nobody_waits_for_is_not_computed(gate: Gate) -> None:
    worker, _ = occupied(gate)
    given_up, kept = hand_in(worker, 1, 2)

    assert given_up.cancel()
    gate.may_go.set()

    assert kept.result(WAIT_S) == 2
    assert gate.batches == [["first"], [2]]


def test_closing_answers_what_was_accepted_and_takes_nothing_more(gate: Gate) -> None:
    worker, first = occupied(gate)
    answers = hand_in(worker, 1, 2)
    closing = threading.Thread(target=worker.close)

    with worker.reserve(1) as submit:  # an upload that is still being decoded
        closing.start()
        gate.may_go.set()
        last = submit(Job(3, "all"))
    closing.join(WAIT_S)

    assert [each.result(0) for each in (first, *answers, last)] == ["first", 1, 2, 3]
    assert not worker.is_alive
    with pytest.raises(RefusalError, match="stopping") as refused, worker.reserve(1):
        pass
    assert refused.value.status == 503


def learned(seconds: Callable[[int], float], *, largest: int = 8) -> BatchSizes:
    """Return sizes after as many batches as are tried, of a queue that is always full."""
    sizes = BatchSizes(largest)
    for _ in range(TRIALS * len(sizes.sizes)):
        chosen = sizes.choose(largest)
        sizes.add(chosen, seconds(chosen))
    return sizes


def test_as_many_are_joined_as_gain() -> None:
    gaining = learned(lambda size: 0.1 + 0.001 * size, largest=6)

    assert gaining.sizes == (1, 2, 4, 6)
    assert [gaining.choose(waiting) for waiting in (0, 1, 3, 5, 6, 20)] == [1, 1, 3, 5, 6, 6]
    assert learned(lambda size: 0.1 * size).choose(8) == 1  # one input keeps the model busy
    assert learned(lambda size: 0.1 * max(size, 4)).choose(8) == 4  # four at the price of one


@pytest.mark.parametrize("num_slow", [1, 2])
def test_a_disturbance_does_not_decide(num_slow: int) -> None:
    sizes = BatchSizes(2)
    for number in range(TRIALS):
        sizes.add(1, 0.1)
        sizes.add(2, 9.0 if number < num_slow else 0.1)

    assert sizes.choose(2) == 2


def test_sizes_are_tried_again_after_a_while() -> None:
    sizes = learned(lambda size: 0.1 * size)
    for _ in range(RETRIED_AFTER):
        sizes.add(1, 0.5)  # the machine has changed: only the processor's other cores are fast now
        if sizes.choose(8) == 8:
            break

    assert sizes.choose(8) == 8


def test_others_are_waited_for_until_it_is_known_how_many_are_worth_it() -> None:
    sizes = BatchSizes(8)
    for _ in range(TRIALS):
        sizes.add(1, 0.1)

    assert sizes.wanted == 8
    assert learned(lambda size: 0.1 * size).wanted == 1
    assert learned(lambda size: 0.1 * max(size, 4)).wanted == 4


def test_an_idle_model_that_gains_nothing_does_not_begin_to_wait_again() -> None:
    sizes = learned(lambda size: 0.1 * size)
    for _ in range(10 * RETRIED_AFTER):
        sizes.add(1, 0.1)

    assert sizes.wanted == 1
    assert sizes.choose(8) == 8  # what waits anyway is tried once more


def test_each_group_has_sizes_its_own_until_there_are_many() -> None:
    groups = sizes_by_group(8)
    for _ in range(TRIALS):
        for size in (1, 2, 4, 8):
            groups(1).add(size, 0.1 * size)

    assert (groups(1).wanted, groups(8).wanted) == (1, 8)
    for number in range(GROUPS_KEPT - 1):
        groups(10 + number)
    assert groups(1).wanted == 8
