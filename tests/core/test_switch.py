"""Settings of the whole process that several want at once."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
import torch

from vitrail.core.switch import SharedSwitch
from vitrail.engines.export.tracing import quiet
from vitrail.interpret.record import uncompiled

WAIT_S = 20.0


def left_in_the_order_of_coming(*blocks: object) -> None:
    """Enter two contexts, and leave first that which was entered first."""
    first, second = blocks
    with ExitStack() as rest, ExitStack() as early:
        early.enter_context(first)  # type: ignore[arg-type]
        rest.enter_context(second)  # type: ignore[arg-type]


def test_it_is_on_from_the_first_who_comes_to_the_last_who_leaves() -> None:
    told: list[str] = []

    @contextmanager
    def turned_on() -> Iterator[None]:
        told.append("on")
        yield
        told.append("off")

    switch = SharedSwitch(turned_on)
    may_leave, is_in = threading.Event(), threading.Event()

    def stay() -> None:
        with switch.on():
            is_in.set()
            assert may_leave.wait(WAIT_S)

    other = threading.Thread(target=stay)
    with switch.on():
        other.start()
        assert is_in.wait(WAIT_S)
    assert told == ["on"]
    may_leave.set()
    other.join(WAIT_S)
    assert told == ["on", "off"]
    with switch.on():
        assert told == ["on", "off", "on"]


def test_an_error_turns_it_off() -> None:
    entered = ExitStack()
    switch = SharedSwitch(lambda: entered)
    left: list[bool] = []
    entered.callback(left.append, True)
    with pytest.raises(ValueError, match="odd"), switch.on():
        raise ValueError("odd")
    assert left == [True]


def test_two_conversions_at_once_leave_logging_as_it_was() -> None:
    before = logging.root.manager.disable
    left_in_the_order_of_coming(quiet(), quiet())
    assert logging.root.manager.disable == before


def test_two_explanations_at_once_leave_the_compiler_as_it_was() -> None:
    import torch._dynamo.eval_frame as compiler

    before = compiler._stance
    assert "torch._dynamo" in sys.modules
    left_in_the_order_of_coming(uncompiled(), uncompiled())
    try:
        assert compiler._stance == before
    finally:
        torch.compiler.set_stance("default")
