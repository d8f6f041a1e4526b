"""The command lab."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from vitrail.cli.app import Settings, app


@app.command(help_epilogue="Example: vitrail lab bottleneck --seed 1")
def lab(
    names: Annotated[list[str] | None, Parameter(name="CLAIM")] = None,
    /,
    *,
    output: Annotated[Path, Parameter(name=["--output", "-o"])] = Path("lab"),
    seed: int = 0,
    set_: Settings = (),
) -> int:
    """List claims of papers about attention, or measure some; each takes at most three minutes.

    Args:
        names: Claims to measure, or all. Without any: list the claims.
        output: Folder for plots, results.json and lab.html; other claims in it are kept.
        seed: Seed of everything random.
        set_: One setting of a claim, such as bottleneck.num_steps=100; may be given several times.
    """
    from vitrail.core.config import parse_assignments

    changes = parse_assignments(set_)
    from vitrail.cli import show as terminal

    if not names:
        terminal.show_claims()
        return 0
    from vitrail.lab.harness import run_claims

    with terminal.show_measuring() as listen:
        done = run_claims(names, changes=changes, output=output, seed=seed, on_event=listen)
    terminal.show_lines([f"page {done.page}"])
    return 0
