"""What models of images and texts found: texts with images, and images with texts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from vitrail.cli.show.lines import make_table, show_errors

if TYPE_CHECKING:
    from vitrail.tasks.contrastive.retrieval import Retrieval


def show_retrieval(found: Retrieval) -> None:
    """Write what is nearest to each query, the nearest first; errors go to the error stream."""
    table = make_table("query", "found", "cosine")
    table.columns[2].justify = "right"
    for result in found.results:
        for place, match in enumerate(result.matches):
            table.add_row(Text(result.query if place == 0 else ""), Text(match.name), f"{match.cosine:.3f}")
    if table.row_count:
        Console().print(table)
    show_errors(found.errors)
