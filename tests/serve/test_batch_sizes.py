"""What sizes of batches are chosen, of models that gain by them and of those that do not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from vitrail.serve.batching import GROUPS_KEPT, RETRIED_AFTER, TRIALS, BatchSizes, SizesByGroup


def learned(seconds: Callable[[int], float], *, largest: int = 8) -> BatchSizes:
    """Return sizes after as many batches as are tried, of a queue that is always full."""
    sizes = BatchSizes(largest)
    for _ in range(TRIALS * len(sizes.sizes)):
        chosen = sizes.choose(largest)
        sizes.add(chosen, seconds(chosen))
    return sizes


def test_a_model_that_one_input_keeps_busy_answers_one_after_the_other() -> None:
    assert learned(lambda size: 0.1 * size).choose(8) == 1


def test_a_model_that_gains_takes_all_that_wait() -> None:
    sizes = learned(lambda size: 0.1 + 0.001 * size, largest=6)

    assert sizes.sizes == (1, 2, 4, 6)
    assert [sizes.choose(waiting) for waiting in (0, 1, 3, 5, 6, 20)] == [1, 1, 3, 5, 6, 6]


def test_no_more_are_joined_than_gain() -> None:
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


def test_each_group_has_sizes_of_its_own_until_there_are_many() -> None:
    groups = SizesByGroup(8)
    for _ in range(TRIALS):
        for size in (1, 2, 4, 8):
            groups.of((1, None)).add(size, 0.1 * size)

    assert (groups.of((1, None)).wanted, groups.of((8, None)).wanted) == (1, 8)
    for number in range(GROUPS_KEPT - 1):
        groups.of(f"{number}")
    assert groups.of((1, None)).wanted == 8
