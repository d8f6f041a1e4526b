"""What ``vitrail explain`` shows of a model without a file: its layers, and what is not drawn."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from rich.console import Console

from vitrail.cli.show.lines import MAX_WIDTH, make_table, show_lines

if TYPE_CHECKING:
    from vitrail.interpret.findings import Learned


def show_learned(found: Learned) -> None:
    """Write one row for each layer that attends, then what was measured and what is left out, and why."""
    from vitrail.studies.learned_page import layer_table, measured_on, reasons

    if found.heads is not None:
        header, rows = layer_table(found.heads)
        shown = header[:5]  # as many fit; nats are on the page
        table = make_table(*shown)
        for name, column in zip(shown, table.columns, strict=True):
            if name != "name":
                column.justify = "right"
        for row in rows:
            table.add_row(*map(_on_two_lines, row[:5]))
        Console().print(table)
        _show_wrapped(measured_on(found.heads))
    for names, reason in reasons(found):
        _show_wrapped(f"not drawn: {names}: {reason}")


def _on_two_lines(cell: str) -> str:
    """Set a mean above its range, so that all columns fit beside each other."""
    return cell.replace(" (", "\n", 1).replace(" to ", "..").rstrip(")")


def _show_wrapped(text: str) -> None:
    show_lines(textwrap.wrap(text, MAX_WIDTH, break_on_hyphens=False, break_long_words=False))
