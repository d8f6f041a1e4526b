"""Graceful interruption: finish the current step, save, stop."""

from __future__ import annotations

import shlex
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

EXIT_CODE = 130  # what shells report for a program ended by SIGINT


class TrainingInterrupted(KeyboardInterrupt):
    """A run was stopped by SIGINT or SIGTERM; its state is saved."""

    def __init__(self, path: Path, step: int, steps: int) -> None:
        self.path, self.step, self.steps = path, step, steps
        super().__init__(
            f"stopped after step {step} of {steps}; everything is saved. Go on with: {resume_command(path)}"
        )


def resume_command(path: Path) -> str:
    """Return the command line that resumes a run."""
    return f"vitrail train --resume {shlex.quote(str(path))}"


@contextmanager
def resumable(path: Path) -> Iterator[None]:
    """If the block is interrupted, tell how to resume from the last checkpoint."""
    try:
        yield
    except TrainingInterrupted:
        raise
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"stopped. Go on with: {resume_command(path)}") from None


@contextmanager
def deferred_interrupts() -> Iterator[threading.Event]:
    """Set an event at the first SIGINT or SIGTERM instead of dying; a second one acts as usual."""
    requested = threading.Event()

    def note() -> None:
        requested.set()
        restore()

    with handled_signals(note) as restore:
        yield requested


@contextmanager
def handled_signals(handle: Callable[[], None]) -> Iterator[Callable[[], None]]:
    """Call a function at SIGINT and SIGTERM within the block; yields what ends that earlier.

    No effect outside the main thread, where signals cannot be caught.
    """
    former = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            former[number] = signal.signal(number, lambda number, frame: handle())

    def restore() -> None:
        for number, handler in former.items():
            signal.signal(number, handler)

    try:
        yield restore
    finally:
        restore()
