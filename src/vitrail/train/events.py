"""Events of the training loop, for a progress bar, a log or a notebook."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple


class Started(NamedTuple):
    """Training begins or resumes."""

    step: int
    """Steps done so far; 0 for a fresh run."""
    steps: int


class Stepped(NamedTuple):
    """One optimiser step is done; carries only what is known without synchronising."""

    step: int
    steps: int


class Logged(NamedTuple):
    """Averages since the last such event."""

    step: int
    steps: int
    loss: float
    """Mean loss per item."""
    parts: dict[str, float]
    """The objective's other means, such as ``correct``."""
    rate: float
    """Learning rate as a fraction of its peak."""
    gradient_norm: float
    """Mean gradient norm before clipping."""
    samples_per_s: float
    """Over all processes, validation and saving excluded."""
    elapsed_s: float
    """Training time so far, including earlier sessions."""
    peak_memory_mib: float | None = None
    """Peak memory of the first process in this session; None where unknown."""
    items_per_s: float | None = None
    """Like ``samples_per_s``, in the loss's own unit (tokens), if it has one."""
    unit: str = "samples"


class Validated(NamedTuple):
    """The validation split was scored, with averaged weights where there are any."""

    step: int
    scores: dict[str, Any]
    """The evaluator's result."""
    elapsed_s: float


class Saved(NamedTuple):
    """A checkpoint is complete."""

    step: int
    folder: Path


class Replanned(NamedTuple):
    """The number of steps was corrected to meet the deadline."""

    step: int
    former_steps: int
    """Steps planned until now."""
    steps: int
    """Steps planned from now on."""


class StoppedEarly(NamedTuple):
    """Early stopping: the score has not improved for long."""

    step: int
    """Steps done."""
    former_steps: int
    best_step: int | None
    """Step of the best validation, if any."""
    score: str | None
    """Name of the score that models are selected by."""
    best: float | None


class Kept(NamedTuple):
    """The training is done, and the model has the weights of the best validation."""

    step: int
    """Step of that validation."""
    steps: int
    best: float
    """The score that models are selected by."""


Event = Started | Stepped | Logged | Validated | Saved | Replanned | StoppedEarly | Kept
OnEvent = Callable[[Event], None]


def ignore(event: object) -> None:
    """Discard an event."""
