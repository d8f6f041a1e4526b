from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from making.small_exports import small_vit
from vitrail.engines.contract import Inputs
from vitrail.engines.remote import EngineError, RemoteEngine
from vitrail.engines.turns import (
    ROWS,
    Contender,
    MatrixProduct,
    ProductShape,
    has_product,
    passes_for,
    shape_for,
    take_turns,
)

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

    def hold(self, name: str, make: Callable[[], Inputs]) -> None:
        if name not in self.held:
            self.held[name] = make()
            self.largest = max(self.largest, len(self.held[name][0]))

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


def ceilings_of(*contenders: Contender, product: ScriptedEngine | None = None) -> dict[Any, list[float]]:
    return take_turns(
        contenders,
        {"float32": product or ScriptedEngine()},
        shape=SHAPE,
        make_batch=lambda batch: (torch.zeros(batch, 2),),
        rounds=3,
    )


@pytest.mark.parametrize("from_pass", [1, 2, 3])
def test_a_batch_that_ends_the_process_fails_alone(from_pass: int) -> None:
    engine, other = ScriptedEngine(deadly="8", from_pass=from_pass), ScriptedEngine()
    small, large = Contender(engine, 1, "one"), Contender(engine, 8, "one")
    unharmed = Contender(other, 8, "other")

    ceilings = ceilings_of(small, large, unharmed)

    assert (small.reason, unharmed.reason) == (None, None)
    assert (large.reason, large.seconds) == ("killed in batch 8", [])
    assert len(small.seconds) == len(unharmed.seconds) == len(ceilings["float32"]) == 3
    assert (engine.starts, other.starts) == (2, 1)


def test_each_batch_has_its_own_memory_in_whatever_order_they_are_named() -> None:
    engine = ScriptedEngine()
    large, small = Contender(engine, 8, "one"), Contender(engine, 1, "one")

    ceilings_of(large, small)

    assert (large.peak_mib, small.peak_mib) == (800, 100)


def test_a_product_that_fails_leaves_no_ceiling_and_the_engines_their_figures() -> None:
    contender = Contender(ScriptedEngine(), 1, "one")

    assert ceilings_of(contender, product=ScriptedEngine(deadly="product")) == {}
    assert contender.reason is None


def test_a_turn_is_filled_with_passes() -> None:
    assert [passes_for(seconds) for seconds in (1e-6, 0.1, 5.0)] == [20, 3, 1]


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "int8"])
def test_every_kernel_multiplies_the_same(precision: str) -> None:
    if precision == "int8" and not torch.cpu._is_vnni_supported():
        pytest.skip("without VNNI int8 sums overflow 16 bits; the ceiling is a matter of speed")
    if not has_product(precision):  # type: ignore[arg-type]
        pytest.skip(f"this CPU has no {precision}")
    product = MatrixProduct(ProductShape(5, 96, 7), precision)  # type: ignore[arg-type]

    results = [kernel().float() for kernel in product.kernels]  # type: ignore[attr-defined]

    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(rows, 96, generator=generator) for rows in (5, 7))
    tolerance = {"float32": 1e-5, "bfloat16": 0.02, "int8": 0.05}[precision]
    for result in results:
        assert (result - x @ weight.T).norm() < tolerance * (x @ weight.T).norm()


def test_kernels_take_turns() -> None:
    product, called = MatrixProduct(ProductShape(5, 96, 7), "float32"), []
    product.kernels = [lambda: called.append("one"), lambda: called.append("other")]

    outputs = [product.run(()) for _ in range(3)]

    assert outputs == [(), (), ()]
    assert called == ["one", "other", "one"]


def test_the_shape_is_that_of_the_models_largest_layer() -> None:
    shape = shape_for(small_vit().model)

    assert shape == (ROWS, 256, 288)  # 96 to 288, of at least 256 on each side
    assert shape.flops == 2 * ROWS * 256 * 288
