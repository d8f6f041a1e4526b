"""The command lab: the claims, progress, and every verdict."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from rich.console import Console

from vitrail.cli import show
from vitrail.cli.app import Page, Settings, app, split_names
from vitrail.core.duration import format_duration

if TYPE_CHECKING:
    from vitrail.lab.harness import ClaimEnded, LabEvent, OnLabEvent


@app.command(help_epilogue="Example: vitrail lab bottleneck --seed 1")
def lab(
    names: Annotated[list[str] | None, Parameter(name="CLAIM")] = None,
    /,
    *,
    output: Page = Path("lab"),
    seed: int = 0,
    pictures: str = "",
    set_: Settings = (),
) -> int:
    """List claims of papers about attention, or measure some; each takes at most three minutes.

    Args:
        names: Claims to measure, or all. Without any: list the claims.
        output: Folder for plots, results.json and lab.html; other claims in it are kept.
        seed: Seed of everything random.
        pictures: Formats of each plot beside .png: svg, pdf, or both with a comma between them.
        set_: One setting of a claim, such as bottleneck.num_steps=100; may be given several times.
    """
    from vitrail.core.config import parse_assignments

    changes = parse_assignments(set_)
    if not names:
        from vitrail.lab import CLAIMS

        rows = ((name, claim.statement, claim.source) for name, claim in CLAIMS.items())
        show.table(("claim", "statement", "source"), rows, texts=(0, 1, 2))
        return 0
    from vitrail.lab.harness import run_claims

    with _show_measuring() as listen:
        done = run_claims(
            names, changes=changes, output=output, seed=seed, pictures=split_names(pictures), on_event=listen
        )
    show.lines([f"page {done.page}"])
    return 0


@contextmanager
def _show_measuring() -> Iterator[OnLabEvent]:
    from rich.progress import BarColumn, TaskProgressColumn, TimeRemainingColumn

    from vitrail.lab.harness import ClaimBegan, ClaimEnded

    with show.live(Console(), BarColumn(), TaskProgressColumn(), TimeRemainingColumn()) as live:
        heading = ""

        def listen(event: LabEvent) -> None:
            nonlocal heading
            if isinstance(event, ClaimBegan):
                heading = f"{event.number}/{event.total} {event.name}"
                live.begin(heading)
                live.write(heading)
            elif isinstance(event, ClaimEnded):
                _show_ended(event)
            else:
                live.update(f"{heading} {event.what}", completed=event.done, total=event.total)
                if live.is_due:
                    live.write(f"{event.done}/{event.total} {event.what}")

        yield listen


def _show_ended(event: ClaimEnded) -> None:
    result = event.result
    show.facts(
        (
            ("claim", result.statement),
            ("source", result.source),
            ("published", result.published),
            ("measured", result.measured),
            ("verdict", result.decision),
            ("time", f"{format_duration(result.seconds)}, picture {event.picture}"),
        )
    )
