"""Lines, tables, JSON and errors on the terminal."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from vitrail.tasks.answer_files import FileResults

MAX_WIDTH = 80


def show_json(value: Any, path: Path | None = None) -> None:
    """Write JSON to standard output, or to a file.

    Raises:
        ConfigError: the file cannot be written.
    """
    text = json.dumps(value, indent=2, ensure_ascii=False, default=str)
    if path is None:
        show_lines([text])
        return
    from vitrail.core.errors import ConfigError

    try:
        path.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be written: {error.strerror}",
            expected="a file in a folder that exists and is writable",
            remedy="Choose another output",
        ) from None
    show_lines([str(path)])


def show_lines(lines: Iterable[str]) -> None:
    """Print lines without wrapping."""
    sys.stdout.write("".join(f"{line}\n" for line in lines))


def show_signature(signature: Mapping[str, str]) -> None:
    """Print a signature."""
    line = "|".join(f"{name}:{value}" for name, value in signature.items())
    show_wrapped(line)


def show_errors(errors: Iterable[tuple[str, str]]) -> None:
    """Print errors about files to stderr."""
    for name, error in errors:
        message = error if name in error else f"{name}: {error}"
        sys.stderr.write(f"vitrail: skipped: {message}\n")


def show_line_fault(number: int, severity: str, message: str) -> None:
    """Print to stderr what is wrong with, or doubtful about, a line of a text."""
    sys.stderr.write(f"vitrail: line {number}: {severity}: {message}\n")


def is_first_process() -> bool:
    """Return whether this is the first of torchrun's processes, the only one that prints."""
    return os.environ.get("RANK", "0") == "0"


def show_wrapped(text: str, indent: str = "") -> None:
    """Print text in lines of 80 columns; ``indent`` begins all but the first."""
    show_lines(
        wrap(text, MAX_WIDTH, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False)
    )


def show_stage(stage: str) -> None:
    """Print the current stage to stderr."""
    lines = wrap(f"vitrail: {stage}", MAX_WIDTH, subsequent_indent="  ", break_long_words=False)
    sys.stderr.write("".join(f"{line}\n" for line in lines))
    sys.stderr.flush()


def make_table(*columns: str) -> Table:
    """Return an empty table in the common style."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def show_table(
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    texts: Collection[int] = (0,),
    width: int | None = None,
    padding: int = 2,
) -> None:
    """Print a table; without column names only its rows.

    Args:
        texts: columns of text, which may fold; the others are numbers.
        width: of the terminal (default: as it is).
        padding: spaces between columns.
    """
    table = make_table(*header)
    table.show_header, table.padding = any(header), (0, padding, 0, 0)
    for number, column in enumerate(table.columns):
        if number not in texts:
            column.justify, column.no_wrap = "right", True
    for row in rows:
        table.add_row(*(Text(cell, overflow="fold") for cell in row))
    Console(width=width).print(table)


def show_facts(facts: Iterable[tuple[str, str]], width: int | None = None) -> None:
    """Print labels with their texts."""
    show_table(("", ""), facts, texts=(0, 1), width=width)


def on_two_lines(cell: str) -> str:
    """Put a value above its range or interval, so that all columns fit."""
    return cell.replace(" (", "\n", 1).replace(" to ", "..").rstrip(")")


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
