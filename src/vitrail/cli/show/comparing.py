"""What ``vitrail compare`` shows: how far all runs are, the table, and what it says."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.text import Text

from vitrail.cli.show.lines import MAX_WIDTH, make_table, show_lines
from vitrail.core.duration import format_duration

if TYPE_CHECKING:
    from vitrail.studies.comparing import Compared, ComparisonEvent, OnComparisonEvent, RunBegan, RunEnded
    from vitrail.studies.comparison import Comparison

MOST_PAIRS = 10  # of a table on a terminal; the page has all
LEAST_COLUMNS = 5  # what a narrow terminal shows: name, score, interval, and two more


@contextmanager
def show_comparing() -> Iterator[OnComparisonEvent]:
    """Give a listener for ``compare``: what is trained, how far all runs are, what each came to."""
    console = Console()
    if not console.is_terminal:
        yield _PlainLines(console)
        return
    columns = [MofNCompleteColumn(), BarColumn(16), TextColumn("{task.fields[left]}")]
    with Progress(*columns, TextColumn("{task.description}"), console=console) as progress:
        yield _Bar(progress)


def show_comparison(compared: Compared) -> None:
    """Write one row for each mixer or model, the tests, what they say, and at last where the page is."""
    from vitrail.studies.comparison import comparison_table

    comparison, console = compared.comparison, Console()
    header, rows = comparison_table(comparison)
    _show_table(console, *fit_columns(header, rows, min(console.width, MAX_WIDTH)))
    if 0 < len(comparison.pairs) <= MOST_PAIRS:
        show_lines([""])
        _show_pairs(console, comparison)
    show_lines([""])
    for sentence in comparison.statements:
        show_lines(textwrap.wrap(sentence, min(console.width, MAX_WIDTH), subsequent_indent="  "))
    for run in comparison.runs:
        if run.error:
            sys.stderr.write(f"vitrail: failed: {run.name}, seed {run.seed}: {run.error}\n")
    show_lines([f"report {compared.page}"])


def fit_columns(
    header: Sequence[str], rows: Sequence[Sequence[str]], width: int
) -> tuple[list[str], list[list[str]]]:
    """Leave out columns from the right until the table fits; the page has them all.

    Args:
        header: names of the columns.
        rows: texts of the cells.
        width: what there is.
    """
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    count = len(header)
    while count > LEAST_COLUMNS and sum(widths[:count]) + count - 1 > width:
        count -= 1
    return list(header[:count]), [list(row[:count]) for row in rows]


class _Bar:
    """Draw one live line for all runs, and the results above it."""

    def __init__(self, progress: Progress) -> None:
        self._progress, self._heading = progress, ""
        self._bar = progress.add_task("", total=None, left="")

    def __call__(self, event: ComparisonEvent) -> None:
        from vitrail.studies.comparing import RunBegan, RunEnded, RunWent

        if isinstance(event, RunBegan):
            self._heading = f"{event.name}, seed {event.seed}"
            self._progress.update(
                self._bar,
                completed=event.number - 1,
                total=event.total,
                left=_time_left(event),
                description=self._heading,
            )
        elif isinstance(event, RunEnded):
            self._progress.console.print(Text(_result_line(event)), soft_wrap=True)
            self._progress.update(self._bar, completed=event.number, total=event.total)
        elif isinstance(event, RunWent):
            self._progress.update(self._bar, description=f"{self._heading}: {event.line}")
        else:
            self._progress.update(self._bar, description="testing the differences", left="")


class _PlainLines:
    """Write one line for every event."""

    def __init__(self, console: Console) -> None:
        self._console, self._heading = console, ""

    def __call__(self, event: ComparisonEvent) -> None:
        from vitrail.studies.comparing import RunBegan, RunEnded, RunWent

        if isinstance(event, RunBegan):
            self._heading = f"{event.number}/{event.total} {event.name}, seed {event.seed}"
            self._write(", ".join(filter(None, (self._heading, _time_left(event)))))
        elif isinstance(event, RunEnded):
            self._write(_result_line(event))
        elif isinstance(event, RunWent):
            self._write(f"{self._heading}: {event.line}")
        else:
            self._write("testing the differences")

    def _write(self, line: str) -> None:
        self._console.print(Text(line), soft_wrap=True)


def _show_table(console: Console, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    table = make_table(*header)
    table.padding = (0, 1, 0, 0)  # the longest names leave no more room in 80 columns
    table.columns[0].no_wrap = True
    for column in table.columns[1:]:
        column.justify, column.no_wrap = "right", True
    for row in rows:
        table.add_row(*map(Text, row))
    console.print(table)


def _show_pairs(console: Console, comparison: Comparison) -> None:
    from vitrail.studies.comparison_page import format_p

    words = comparison.words
    table = make_table("higher", "lower", words.label, "95 %", "p", "Holm", "")
    table.padding = (0, 1, 0, 0)
    for column in table.columns[2:6]:
        column.justify, column.no_wrap = "right", True
    for test in comparison.pairs:
        cells = [
            test.first,
            test.second,
            f"{words.factor * test.difference:+.1f}",
            f"{words.factor * test.lower:+.1f} to {words.factor * test.upper:+.1f}",
            format_p(test.p),
            format_p(test.p_corrected),
            "shown" if test.is_shown else "not shown",
        ]
        table.add_row(*map(Text, cells))
    console.print(table)


def _time_left(event: RunBegan) -> str:
    """Say how long the runs that are left may take, this one included; nothing where steps end them."""
    left = (event.total - event.number + 1) * event.budget_s
    return f"about {format_duration(left)} left" if event.is_timed else ""


def _result_line(event: RunEnded) -> str:
    from vitrail.studies.comparison import SCORES

    run, words = event.run, SCORES[event.score]
    name = f"{run.name}, seed {run.seed}"
    if run.figures is None:
        return f"{name} failed: {run.error}"
    figures = run.figures
    score = f"{words.label} {words.format(figures.score)}"
    return f"{name}: {score}, {figures.steps:,} steps, {figures.samples_per_s:,.0f} samples/s"
