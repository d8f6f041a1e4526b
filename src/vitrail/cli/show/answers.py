"""Terminal output of predictions: classes and boxes of files."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from vitrail.cli.show.lines import make_table, show_errors, show_lines

if TYPE_CHECKING:
    from vitrail.tasks.contract import FileResults
    from vitrail.tasks.contrastive.retrieval import Retrieval


def show_results(results: FileResults) -> None:
    """Print a table of predictions with its notes; errors go to stderr."""
    table = make_table(*results.columns)
    for column in table.columns[2:]:
        column.justify = "right"
    for row in results.rows:
        table.add_row(*(Text(cell, overflow="fold") for cell in row))
    if table.row_count:
        Console().print(table)
    show_errors(results.errors)
    show_lines(results.notes)


def show_unknown_words(words: Sequence[str]) -> None:
    """Print to stderr the words that a captioner does not know, if any."""
    if words:
        subject = "1 word is" if len(words) == 1 else f"{len(words)} words are"
        listed = ", ".join(words)
        sys.stderr.write(f"vitrail: warning: {subject} not in the model's vocabulary: {listed}\n")


def show_retrieval(found: Retrieval) -> None:
    """Print the results of each query, nearest first; errors go to stderr."""
    table = make_table("query", "found", "cosine")
    table.columns[2].justify = "right"
    for result in found.results:
        for place, match in enumerate(result.matches):
            table.add_row(Text(result.query if place == 0 else ""), Text(match.name), f"{match.cosine:.3f}")
    if table.row_count:
        Console().print(table)
    show_errors(found.errors)
