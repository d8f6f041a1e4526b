"""Output files of predictions: JSON, JSON lines, tables or plain lines, by file name suffix."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from vitrail.core.durable import atomic_write
from vitrail.core.errors import ConfigError

STRUCTURED = (".json", ".jsonl", ".csv", ".tsv")
SUFFIXES = (*STRUCTURED, ".txt")
FORMULA = re.compile(r"'*[=+\-@\t\r\n\uff1d\uff0b\uff0d\uff20]")  # the last are their full-width forms
QUOTED = re.compile(r"[\",;\t\r\n]")


class FileResults(NamedTuple):
    """Predictions for files in every output format."""

    tree: Any
    """Plain JSON values, for ``.json``."""
    columns: tuple[str, ...]
    """Header of the table that is printed; all columns after the second are numbers."""
    rows: Sequence[tuple[str, ...]]
    errors: Sequence[tuple[str, str]]
    """Unreadable files, each with the reason."""
    table: Sequence[Sequence[object]] = ()
    """Header and rows of ``.csv`` and ``.tsv``; empty if the results were written already."""
    lines: Sequence[str] = ()
    """The lines of ``.txt``."""
    records: Sequence[Any] | None = None
    """Plain JSON values, one per line of ``.jsonl``; by default the elements of ``tree``."""
    notes: Sequence[str] = ()
    """Lines that follow the printed table."""


def check_answer_file(path: Path | None, suffixes: Sequence[str] = SUFFIXES) -> None:
    """Raise ``ConfigError`` for an output file of another suffix, before anything is computed for it."""
    if path is not None and path.suffix.lower() not in suffixes:
        raise ConfigError(
            f"{path} has no suffix of a known format",
            expected=f"a name that ends in {', '.join(suffixes)}",
            remedy="Choose one of these",
        )


def text_table(rows: Sequence[Mapping[str, Any]], **decimals: int) -> list[list[str]]:
    """Return header and rows as texts, empty for None.

    Args:
        rows: with the same keys, at least one.
        decimals: digits of the numbers in a column.
    """

    def text(name: str, value: Any) -> str:
        return "" if value is None else f"{value:.{decimals[name]}f}" if name in decimals else str(value)

    return [[*rows[0]], *([text(*field) for field in row.items()] for row in rows)]


def csv_text(rows: Iterable[Sequence[object]], delimiter: str = ",") -> str:
    """Return rows as delimited text; one that a spreadsheet would take for a formula gets an apostrophe.

    So OWASP advises ("CSV Injection"). ``read_cell`` takes it away; numbers stay numbers.

    >>> print(csv_text([["=1+1", "-0.5", -0.5, "'=x"]]))
    '=1+1,-0.5,-0.5,''=x
    <BLANKLINE>
    """
    lines = []
    for row in rows:
        cells = (f"'{cell}" if _is_formula(cell) else "" if cell is None else str(cell) for cell in row)
        # Python's csv.writer would leave a lone carriage return, at which readers end a line, without quotes
        quoted = ('"{}"'.format(cell.replace('"', '""')) if QUOTED.search(cell) else cell for cell in cells)
        lines.append(delimiter.join(quoted) + "\n")
    return "".join(lines)


def read_cell(cell: str) -> str:
    """Return the text of a cell that ``csv_text`` wrote."""
    return cell[1:] if cell.startswith("'") and _is_formula(cell[1:]) else cell


def _is_formula(cell: object) -> bool:
    """Tell whether a text begins like a formula, perhaps after apostrophes, and is no number."""
    if not isinstance(cell, str) or not FORMULA.match(cell):
        return False
    try:
        return math.isnan(float(cell))
    except ValueError:
        return True


def write_answers(path: Path, answers: FileResults) -> None:
    """Write predictions in the format of the file's suffix.

    Raises:
        ConfigError: unknown suffix.
        CheckpointError: the disk is full or not writable; a former file is as it was.
    """
    check_answer_file(path)
    suffix = path.suffix.lower()
    if suffix == ".json":
        content = json.dumps(answers.tree, indent=2, ensure_ascii=False) + "\n"
    elif suffix == ".jsonl":
        records = answers.tree if answers.records is None else answers.records
        content = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    elif suffix == ".txt":
        content = "".join(f"{line}\n" for line in answers.lines)
    else:
        content = csv_text(answers.table, delimiter="\t" if suffix == ".tsv" else ",")
    atomic_write(path, content)
