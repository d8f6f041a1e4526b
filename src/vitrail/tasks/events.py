"""What the pipeline reports while it works, beside the events of the training itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from vitrail.data.findings import Verdict
from vitrail.tasks.preparing import Prepared
from vitrail.train.events import Event


@dataclass(frozen=True)
class Checked:
    """The data was looked at; the choices follow."""

    verdict: Verdict
    """What the doctor found."""


@dataclass(frozen=True)
class Began:
    """The run directory exists; training follows."""

    folder: Path
    """The run directory."""


@dataclass(frozen=True)
class Finished:
    """The training is over; evaluation and report follow."""

    folder: Path
    """The run directory."""


PipelineEvent = Event | Checked | Prepared | Began | Finished
OnPipelineEvent = Callable[[PipelineEvent], None]


def ignore(event: PipelineEvent) -> None:
    """Do nothing with an event."""
