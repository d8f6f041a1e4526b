"""Terminal output of predictions: classes and boxes of files."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from vitrail.cli.show.lines import show_errors, show_lines, show_table

if TYPE_CHECKING:
    from vitrail.tasks.contract import FileResults
    from vitrail.tasks.contrastive.retrieval import Retrieval


def show_results(results: FileResults) -> None:
    """Print a table of predictions with its notes; errors go to stderr."""
    if results.rows:
        show_table(results.columns, results.rows, texts=(0, 1))
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
    rows = [
        ("" if rank else result.query, match.name, f"{match.cosine:.3f}")
        for result in found.results
        for rank, match in enumerate(result.matches)
    ]
    if rows:
        show_table(("query", "found", "cosine"), rows, texts=(0, 1))
    show_errors(found.errors)
