"""What the commands of the papers' protocols show: tables that fit 80 columns, with their signature."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from textwrap import wrap
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from vitrail.cli.show.lines import MAX_WIDTH, make_table, show_lines, show_signature

if TYPE_CHECKING:
    from vitrail.studies.calibrating import Calibration
    from vitrail.studies.corruption_errors import Robustness
    from vitrail.studies.vtab import TaskScore, VtabScores
    from vitrail.train.evaluate import Report


@contextmanager
def show_parts_done() -> Iterator[Callable[[str, int, int], None]]:
    """Give a listener for what is done and how far it is: a live bar on a terminal, nothing elsewhere."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar, shown = progress.add_task("", total=None), ""

        def listen(part: str, done: int, total: int) -> None:
            nonlocal shown
            if part != shown:
                progress.reset(bar, description=part, total=total or None)
                shown = part
            progress.update(bar, completed=done)

        yield listen


def show_calibration(found: Calibration) -> None:
    """Write each score without and with the temperature, and what was measured."""
    from vitrail.studies.calibration_page import HEADER, score_rows

    header = (*HEADER[:2], f"{HEADER[2]} {found.temperature:.3f}")
    _show_rows(header, score_rows(found.before, found.after))
    show_signature(found.signature)


def show_probe(report: Report) -> None:
    """Write the scores of a probe and their signature."""
    width = max(map(len, report.scores))
    show_lines(f"{name:<{width}}  {score:.4f}" for name, score in report.scores.items())
    show_signature(report.signature)


def show_robustness(found: Robustness) -> None:
    """Write the errors of each corruption in percent, the means, and what was measured."""
    from vitrail.studies.robustness_page import table_header, table_rows

    show_lines([f"wrong answers without corruption: {100 * found.clean:.1f} %; with it, by severity:"])
    _show_rows(table_header(found), table_rows(found))
    show_signature(found.signature)


def show_vtab(scores: VtabScores) -> None:
    """Write the accuracy of each task in percent, group by group, the means, and why tasks failed."""
    rows = []
    for group, mean in scores.groups.items():
        tasks = [task for task in scores.tasks if task.group == group]
        rows += [[task.title, _cell_of(task)] for task in tasks]
        rows.append([f"mean of {group}", _percent(mean)])
    rows.append(["mean of all 19 tasks", _percent(scores.mean)])
    _show_rows(("task", "accuracy, %"), rows)
    for task in scores.tasks:
        if task.error:
            show_lines(wrap(f"{task.title} failed: {task.error}", MAX_WIDTH, break_on_hyphens=False))
    show_signature(scores.signature)


def _show_rows(header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Write a table whose first column is text and whose others are numbers."""
    table = make_table(*header)
    for column in table.columns[1:]:
        column.justify, column.no_wrap = "right", True
    for row in rows:
        table.add_row(*map(Text, row))
    Console(width=MAX_WIDTH).print(table)


def _cell_of(task: TaskScore) -> str:
    if task.accuracy is None:
        return "failed" if task.error else "not here"
    return _percent(task.accuracy)


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}"
