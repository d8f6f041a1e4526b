"""What engines were measured at: a table that fits 80 columns, with those that failed and why."""

from __future__ import annotations

import sys
from textwrap import wrap
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from vitrail.cli.show.lines import MAX_WIDTH

if TYPE_CHECKING:
    from vitrail.engines.bench_report import BenchCell, BenchReport

LABELS = 24  # columns of engine and precision
HEADER = f"{'engine':12}{'precision':12}{'images/s':>9}{'p50 ms':>9}{'p99 ms':>9}{'MiB':>8}{'ceiling':>9}"


def show_bench_stage(stage: str) -> None:
    """Write to the error stream what is being done."""
    sys.stderr.write(f"vitrail: {stage}\n")
    sys.stderr.flush()


def show_bench(report: BenchReport) -> None:
    """Write the figures of each batch size, the best engine marked, and what they were measured with."""
    console = Console(width=MAX_WIDTH) if not sys.stdout.isatty() else Console()
    height, width = report.size
    _say(
        console,
        f"{report.name}, {height}x{width}, {report.gmacs:.2f} GMACs an image; {report.machine}, "
        f"{report.threads} threads, {report.rounds} rounds",
    )
    rows, inner, columns = report.product
    ceilings = ", ".join(f"{name} {rate:,.0f}" for name, rate in report.ceilings.items())
    _say(console, f"ceiling, a product of {rows}x{inner} with {inner}x{columns}, in GFLOP/s: {ceilings}")
    for batch in dict.fromkeys(cell.batch for cell in report.cells):
        best = report.best(batch)
        console.print()
        console.print(Text(f"batch {batch}", style="bold"))
        console.print(Text(HEADER, style="bold"))
        for cell in report.cells:
            if cell.batch == batch:
                _show_cell(console, cell, is_best=cell == best)
    console.print()
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    _say(console, f"answers compared on {report.images}; {versions}")
    if report.unstored is not None:
        _say(console, f"the choice is not stored: {report.unstored}")
    if report.folder is not None:
        _say(
            console, f'* the fastest whose answers agree, which engine="auto" takes; kept in {report.folder}'
        )


def _show_cell(console: Console, cell: BenchCell, *, is_best: bool) -> None:
    label = f"{cell.engine:12}{cell.precision:12}"
    if cell.ran:
        share = "" if cell.ceiling_share is None else f"{cell.ceiling_share:.2f}"
        figures = (
            f"{cell.images_per_s:9.2f}{cell.p50_ms:9.1f}{cell.p99_ms:9.1f}{cell.peak_mib:8.0f}{share:>9}"
        )
        console.print(Text(label + figures + (" *" if is_best else ""), style="green" if is_best else ""))
        label = " " * len(label)
    if cell.reason is not None:
        said = cell.reason if not cell.ran else f"answers differ: {cell.reason}"
        lines = wrap(said, MAX_WIDTH - LABELS, break_on_hyphens=False)
        for place, line in enumerate(lines):
            console.print(Text((label if place == 0 else " " * LABELS) + line, style="yellow"))


def _say(console: Console, text: str) -> None:
    for line in wrap(text, MAX_WIDTH, break_on_hyphens=False, break_long_words=False):
        console.print(Text(line), soft_wrap=True)
