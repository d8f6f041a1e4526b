"""What ``vitrail faithfulness`` shows: how far it is, and the areas of each method."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from vitrail.cli.show.lines import make_table

if TYPE_CHECKING:
    from vitrail.interpret.faithfulness import Faithfulness


@contextmanager
def show_images_done(total: int) -> Iterator[Callable[[int], None]]:
    """Give a listener for the number of images done: a live bar on a terminal, nothing elsewhere."""
    console = Console(stderr=True)
    columns = (TextColumn("images"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("", total=total)
        yield lambda done: progress.update(bar, completed=done)


def show_faithfulness(found: Faithfulness) -> None:
    """Write one row for each method, that of the lowest deletion first, with 95 % intervals below."""
    from vitrail.studies.faithfulness_page import header, table_rows

    table = make_table(*header(found))
    for column in table.columns[1:]:
        column.justify = "right"
    for row in table_rows(found):
        table.add_row(row[0], *(_on_two_lines(cell) for cell in row[1:]))
    Console().print(table)
    Console().print("deletion: lower is better; insertion: higher is better", style="dim")


def _on_two_lines(cell: str) -> str:
    """Set a figure above its interval, so that all columns fit beside each other."""
    return cell.replace(" (", "\n", 1).replace(" to ", "..").rstrip(")")
