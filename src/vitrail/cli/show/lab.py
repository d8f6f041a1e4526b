"""Terminal output of ``vitrail lab``: the claims, progress, and every verdict."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.text import Text

from vitrail.cli.show.lines import make_table
from vitrail.core.duration import format_duration

if TYPE_CHECKING:
    from vitrail.lab.harness import ClaimBegan, ClaimEnded, LabEvent, OnLabEvent

_PLAIN_EVERY_S = 15.0


def show_claims() -> None:
    """Print every claim with its statement and source."""
    from vitrail.lab import CLAIMS

    table = make_table("claim", "statement", "source")
    table.columns[0].no_wrap = True
    for name, claim in CLAIMS.items():
        table.add_row(name, Text(claim.statement), Text(claim.source))
    Console().print(table)


@contextmanager
def show_measuring() -> Iterator[OnLabEvent]:
    """Yield a listener for ``run_claims``: a live bar on a terminal, occasional lines elsewhere."""
    console = Console()
    if not console.is_terminal:
        yield _PlainLines(console)
        return
    columns = [TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn()]
    with Progress(*columns, TextColumn("{task.fields[what]}"), console=console) as progress:
        yield _Bar(progress)


class _Bar:
    """A live progress line, with the verdicts above it."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._bar = progress.add_task("", what="")

    def __call__(self, event: LabEvent) -> None:
        from vitrail.lab.harness import ClaimBegan, ClaimEnded

        if isinstance(event, ClaimBegan):
            self._progress.reset(self._bar, description=_heading(event), what="")
        elif isinstance(event, ClaimEnded):
            _show_result(self._progress.console, event)
        else:
            self._progress.update(self._bar, completed=event.done, total=event.total, what=event.what)


class _PlainLines:
    """At most one line in fifteen seconds."""

    def __init__(self, console: Console) -> None:
        self._console, self._written = console, time.monotonic()

    def __call__(self, event: LabEvent) -> None:
        from vitrail.lab.harness import ClaimBegan, ClaimEnded

        if isinstance(event, ClaimBegan):
            self._write(_heading(event))
        elif isinstance(event, ClaimEnded):
            _show_result(self._console, event)
        elif time.monotonic() - self._written >= _PLAIN_EVERY_S:
            self._write(f"{event.done}/{event.total} {event.what}")

    def _write(self, line: str) -> None:
        self._written = time.monotonic()
        self._console.print(Text(line), soft_wrap=True)


def _heading(event: ClaimBegan) -> str:
    return f"{event.number}/{event.total} {event.name}"


def _show_result(console: Console, event: ClaimEnded) -> None:
    result = event.result
    table = make_table("", "")
    table.show_header = False
    table.columns[0].no_wrap = True
    for name, text in (
        ("claim", result.statement),
        ("source", result.source),
        ("published", result.published),
        ("measured", result.measured),
        ("verdict", result.decision),
        ("time", f"{format_duration(result.seconds)}, picture {event.picture}"),
    ):
        table.add_row(name, Text(text))
    console.print(table)
