from __future__ import annotations

import pytest
import torch

from vitrail.engines.contract import Inputs
from vitrail.engines.remote import EngineError, RemoteEngine
from vitrail.engines.turns import Contender, ProductShape, Turns, take_turns

SHAPE = ProductShape(5, 7, 3)


class ScriptedEngine(RemoteEngine):
    """A ``RemoteEngine`` without a process: its memory grows with its batches, and some batches end it."""

    def __init__(self, *, deadly: str = "", from_pass: int = 1) -> None:
        self.deadly, self.from_pass = deadly, from_pass
        self.held: dict[str, Inputs] = {}
        self.is_alive, self.starts, self.largest, self.passes = True, 1, 0, 0

    def revive(self) -> None:
        if not self.is_alive:
            self.is_alive, self.held, self.largest = True, {}, 0
            self.starts += 1

    def holds(self, name: str) -> bool:
        return name in self.held

    def hold(self, name: str, inputs: Inputs) -> None:
        self.held[name] = inputs
        self.largest = max(self.largest, len(inputs[0]))

    def time(self, name: str, passes: int) -> list[float]:
        assert self.is_alive
        assert name == "product" or name in self.held
        self.passes += name == self.deadly
        if name == self.deadly and self.passes >= self.from_pass:
            self.is_alive = False
            raise EngineError(f"killed in batch {name}")
        return [0.1] * passes

    def peak_mib(self) -> float:
        return 100.0 * self.largest  # engines keep what their largest batch took


def turns_of(*contenders: Contender, product: ScriptedEngine | None = None) -> Turns:
    return take_turns(
        contenders,
        {"float32": product or ScriptedEngine()},
        shape=SHAPE,
        make_batch=lambda batch: (torch.zeros(batch, 2),),
        rounds=3,
    )


@pytest.mark.parametrize("from_pass", [1, 2, 3])
def test_a_batch_that_ends_the_process_costs_its_own_place_alone(from_pass: int) -> None:
    cell, other = ScriptedEngine(deadly="8", from_pass=from_pass), ScriptedEngine()

    turns = turns_of(Contender(cell, 1, "one"), Contender(cell, 8, "one"), Contender(other, 8, "other"))

    small, large, unharmed = turns.timed
    assert (small.reason, unharmed.reason) == (None, None)
    assert (large.reason, large.seconds) == ("killed in batch 8", ())
    assert len(small.seconds) == len(unharmed.seconds) == len(turns.ceilings["float32"]) == 3
    assert (cell.starts, other.starts) == (2, 1)


def test_each_batch_has_its_own_memory_in_whatever_order_they_are_named() -> None:
    cell = ScriptedEngine()

    turns = turns_of(Contender(cell, 8, "one"), Contender(cell, 1, "one"))

    assert [each.peak_mib for each in turns.timed] == [800, 100]


def test_a_product_that_fails_leaves_no_ceiling_and_the_engines_their_figures() -> None:
    turns = turns_of(Contender(ScriptedEngine(), 1, "one"), product=ScriptedEngine(deadly="product"))

    assert turns.ceilings == {}
    assert turns.timed[0].reason is None
