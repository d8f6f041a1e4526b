"""What the training loop reports while it runs, for a progress bar, a log or a notebook."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple


class Started(NamedTuple):
    """Training begins, or goes on."""

    step: int
    """Steps done before; 0 for a fresh run."""
    steps: int
    """Planned number of steps."""


class Stepped(NamedTuple):
    """One optimiser step is done; sent after each, so it carries only what is known without waiting."""

    step: int
    """Steps done."""
    steps: int
    """Planned number of steps."""


class Logged(NamedTuple):
    """Averages since the last such event."""

    step: int
    """Steps done."""
    steps: int
    """Planned number of steps."""
    loss: float
    """Mean loss of one item."""
    parts: dict[str, float]
    """The objective's further means, such as ``correct``."""
    rate: float
    """Share of the peak learning rate now, 0 to 1."""
    gradient_norm: float
    """Mean norm of the gradients before clipping."""
    samples_per_s: float
    """Samples of all processes together, validation and saving not counted."""
    elapsed_s: float
    """Training time so far, earlier sessions included."""
    peak_memory_mib: float | None = None
    """Most memory that this session's first process has held so far; None where nobody counts it."""
    items_per_s: float | None = None
    """What the loss counts instead of samples, if it does, of all processes together."""
    unit: str = "samples"
    """What that is."""


class Validated(NamedTuple):
    """The validation samples were scored, with the averaged weights where there are any."""

    step: int
    """Steps done."""
    scores: dict[str, Any]
    """The evaluator's result."""
    elapsed_s: float
    """Training time so far."""


class Saved(NamedTuple):
    """A checkpoint is complete."""

    step: int
    """Steps done."""
    folder: Path
    """Where it is."""


class Replanned(NamedTuple):
    """The number of steps was corrected to end at the deadline."""

    step: int
    """Steps done."""
    former_steps: int
    """Planned number of steps until now."""
    steps: int
    """Planned number of steps from now on."""


class StoppedEarly(NamedTuple):
    """The training ends before its last planned step: the score has not improved for long."""

    step: int
    """Steps done, and the last one."""
    former_steps: int
    """Planned number of steps until now."""
    best_step: int | None
    """Step of the best validation; None where none was looked for or found."""
    score: str | None
    """Name of the score that models are chosen by."""
    best: float | None
    """Its best value."""


class Kept(NamedTuple):
    """The training is over, and its model has the weights of the best validation."""

    step: int
    """Step of that validation."""
    steps: int
    """Steps done."""
    best: float
    """The score that models are chosen by."""


Event = Started | Stepped | Logged | Validated | Saved | Replanned | StoppedEarly | Kept
OnEvent = Callable[[Event], None]


def ignore(event: Event) -> None:
    """Do nothing with an event."""
