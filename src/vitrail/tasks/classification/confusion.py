"""Confusion matrix as a table, shaded by row-normalised counts."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

STYLE = Path(__file__).with_name("confusion.css").read_text(encoding="utf-8")


def confusion_table(
    confusion: Sequence[Sequence[int]], *, rows: Sequence[str], columns: Sequence[str]
) -> str:
    """Render counts as a table, shaded by their fraction of the row."""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in columns)
    body = []
    for name, row in zip(rows, confusion, strict=True):
        total = max(sum(row), 1)
        cells = "".join(
            f'<td class="{"strong" if count / total > 0.5 else "none" if not count else ""}" '
            f'style="--share:{(count / total) ** 0.5 if count else 0:.2f}">{count}</td>'
            for count in row
        )
        body.append(f'<tr><th scope="row">{escape(name)}</th>{cells}</tr>')
    return (
        f'<div class="scroll confusion"><table><thead><tr><th></th>{head}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )
