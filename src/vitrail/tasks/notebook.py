"""Progress of a training in a notebook: the check's verdict, and a bar on a line of its own."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from vitrail.tasks.preparing import Checked
from vitrail.train.events import Logged, Started, Stepped, Validated

if TYPE_CHECKING:
    from vitrail.tasks.training import OnPipelineEvent, PipelineEvent

WIDTH, EVERY_S = 24, 0.5


def is_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    return "ipykernel" in sys.modules


def notebook_progress() -> OnPipelineEvent:
    """Return a listener for ``train`` that prints; a carriage return goes back to the start of a line."""
    line = loss = score = ""
    drawn = 0.0

    def listen(event: PipelineEvent) -> None:
        nonlocal line, loss, score, drawn
        if isinstance(event, Checked):
            sys.stdout.write("\n".join(event.verdict.summary()) + "\n")
        elif isinstance(event, Logged):
            loss = f", loss {event.loss:.3f}"
        elif isinstance(event, Validated):
            numbers = (
                f"{name} {value:.3f}" for name, value in event.scores.items() if isinstance(value, float)
            )
            score = ", validation " + next(numbers, "")
        elif isinstance(event, Started | Stepped):
            is_last = event.step == event.steps
            if is_last or time.monotonic() - drawn > EVERY_S:
                done = WIDTH * event.step // max(event.steps, 1)
                former, drawn = len(line), time.monotonic()
                line = f"[{'#' * done:.<{WIDTH}}] step {event.step} of {event.steps}{loss}{score}"
                sys.stdout.write("\r" + line.ljust(former) + "\n" * is_last)
                sys.stdout.flush()

    return listen
