"""Events of the pipeline, beside those of the training loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from vitrail.data.findings import Verdict
from vitrail.tasks.preparing import Prepared
from vitrail.train.events import Event


@dataclass(frozen=True)
class Checked:
    """The doctor has finished; the choices follow."""

    verdict: Verdict


@dataclass(frozen=True)
class Began:
    """The run directory exists; training follows."""

    folder: Path
    """The run directory."""


@dataclass(frozen=True)
class Finished:
    """The training is done; evaluation and report follow."""

    folder: Path
    """The run directory."""


PipelineEvent = Event | Checked | Prepared | Began | Finished
OnPipelineEvent = Callable[[PipelineEvent], None]


def ignore(event: PipelineEvent) -> None:
    """Discard an event."""
