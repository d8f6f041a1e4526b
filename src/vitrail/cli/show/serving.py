"""What ``vitrail serve`` shows: where it listens, its models, and that it stops."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from vitrail.cli.show.lines import show_lines

if TYPE_CHECKING:
    from vitrail.serve.running import ServeEvent


def show_serving(event: ServeEvent) -> None:
    """Write a line for what happened, at once."""
    from vitrail.serve.running import Listening, ModelFailed, ModelLoaded

    if isinstance(event, Listening):
        if event.is_open:
            sys.stderr.write(
                "vitrail: warning: other machines can reach this server, and it asks for no token\n"
            )
        lines = [f"serving on {event.url} (Ctrl+C stops)"]
    elif isinstance(event, ModelLoaded):
        lines = [f"ready    {event.name}: {event.kind}, loaded in {event.seconds:.1f} s"]
    elif isinstance(event, ModelFailed):
        sys.stderr.write(f"vitrail: failed: {event.name}: {event.error}\n")
        lines = []
    else:
        lines = ["stopping, accepted requests are answered first"]
    show_lines(lines)
    sys.stdout.flush()
