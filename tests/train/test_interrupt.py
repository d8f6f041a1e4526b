"""Stopping from outside."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from vitrail.train.interrupt import TrainingInterrupted, deferred_interrupts, resumable

FOLDER = Path("runs") / "my run"


@pytest.fixture
def default_handler() -> Iterator[None]:
    """Handle SIGINT as Python does by default; a shell has background jobs ignore it."""
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, former)


@pytest.mark.usefixtures("default_handler")
def test_the_first_signal_is_noted_and_the_second_acts() -> None:
    with deferred_interrupts() as interrupts:
        signal.raise_signal(signal.SIGINT)
        assert interrupts.is_set()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_an_interruption_tells_how_to_go_on() -> None:
    with pytest.raises(KeyboardInterrupt) as caught, resumable(FOLDER):
        raise KeyboardInterrupt
    assert str(caught.value) == "stopped. Go on with: vitrail train --resume 'runs/my run'"


def test_a_saved_interruption_keeps_its_message() -> None:
    with (
        pytest.raises(TrainingInterrupted, match=r"after step 3 of 7.*--resume 'runs/my run'"),
        resumable(FOLDER),
    ):
        raise TrainingInterrupted(FOLDER, 3, 7)
