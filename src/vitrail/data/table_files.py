"""Tables in files of text: delimited rows (CSV, TSV) and JSON lines; an error names the line."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitrail.core.errors import DataError
from vitrail.data.findings import Finding, number_of

TABLE_SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet")
PEEK = 65536  # bytes of a table that a cheap look reads


@dataclass(frozen=True)
class TextTable:
    """The columns of one file."""

    columns: dict[str, list[Any]]
    """Values by column name; of equal names the first one counts."""
    findings: tuple[Finding, ...] = ()
    """What was noticed while reading."""


def read_text_table(path: Path, *, joins_rest: bool = False) -> TextTable:
    """Read a file of JSON lines, or of delimited rows where its name does not end in ``.jsonl``.

    Args:
        path: the file, text encoded as UTF-8.
        joins_rest: whether cells behind the last column belong to it, as in texts without quotes; else a row
            of too many cells is an error.

    Raises:
        DataError: it cannot be read, a line of it is not what it must be, or a quote is not closed.
    """
    try:
        if path.suffix.lower() == ".jsonl":
            return _read_json_lines(path)
        return _read_delimited(path, joins_rest)
    except DataError:
        raise
    except (OSError, ValueError) as error:
        raise DataError(
            f"{path} cannot be read as a table: {' '.join(str(error).split())[:200]}",
            expected=f"a complete {path.suffix} file, text encoded as UTF-8",
            remedy="Write the file again, or remove it",
        ) from None


def column_names(path: Path) -> list[str]:
    """Return the columns of a table by a look at its beginning; of JSON lines, those of the first row.

    Raises:
        OSError, ValueError, ImportError, csv.Error, RecursionError: they cannot be told.
    """
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        import pyarrow.parquet

        return list(pyarrow.parquet.read_schema(path).names)
    with path.open("rb") as opened:
        line = opened.read(PEEK).decode("utf-8-sig", errors="replace").partition("\n")[0]
    if suffix == ".jsonl":
        row = json.loads(line)
        return list(row) if isinstance(row, Mapping) else []
    return [name.strip() for name in next(csv.reader([line], delimiter=_delimiter(line)), [])]


def tell_tables(folder: Path) -> str:
    """Return a clause on the tables of a folder and their columns, for errors; empty where there are none.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "all.csv").write_text("picture_url,words\\na.png,a dog\\n")
    ...     tell_tables(Path(folder))
    "; all.csv has the columns 'picture_url', 'words', which do not tell images and labels or captions"
    """
    told = []
    for file in sorted(folder.glob("*")):
        if file.suffix.lower() in TABLE_SUFFIXES and not file.name.startswith("."):
            with suppress(OSError, ValueError, ImportError, csv.Error, RecursionError):
                told.append(f"{file.name} has the columns {', '.join(map(repr, column_names(file)))}")
    return f"; {'; '.join(told[:3])}, which do not tell images and labels or captions" if told else ""


def json_objects(
    lines: Iterable[str], path: Path, *, expected: str = "a JSON object on each line"
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the number of each line that is not blank, from 1, and the object on it.

    Args:
        lines: of the file.
        path: the file, for messages.
        expected: what a line must be, for messages.

    Raises:
        DataError: a line is no JSON object.
    """
    for number, line in enumerate(lines, start=1):
        if not line or line.isspace():
            continue
        try:
            row = json.loads(line.rstrip("\r\n"))
            fault = "" if isinstance(row, dict) else f"is a JSON {type(row).__name__}"
        except json.JSONDecodeError as error:
            fault = f"is no JSON: {error.msg} at character {error.pos + 1}"
        except (ValueError, RecursionError) as error:  # a number of too many digits, too many brackets
            fault = f"is no JSON: {error}"
        if fault:
            raise DataError(
                f"line {number:,} of {path} {fault}",
                expected=expected,
                remedy="Correct this line, or remove it",
            )
        yield number, row


def quoted_rows(lines: Sequence[str], delimiter: str, path: Path) -> Iterator[tuple[int, int, list[str]]]:
    """Yield the numbers of the first and the last line of each row, from 1, and its cells.

    A cell may hold line breaks in quotes. Where one does and ends otherwise than with a quote, the quote is
    taken for one that was never closed: all rows up to the next quote, or to the end, would be in that cell.

    Args:
        lines: of the file, with their ends.
        delimiter: between cells.
        path: the file, for messages.

    Raises:
        DataError: a quote is not closed, or a cell is longer than 128 KiB.
    """
    reader = csv.reader(lines, delimiter=delimiter)
    end = 0
    try:
        for row in reader:
            begin, end = end, reader.line_num
            if end - begin > 1 and not _is_closed(lines[begin:end], delimiter):
                raise _unclosed(path, begin + 1)
            yield begin + 1, end, row
    except csv.Error as error:
        if reader.line_num - end > 1:
            raise _unclosed(path, end + 1) from None
        raise DataError(
            f"line {end + 1:,} of {path} cannot be read: {error}",
            expected="cells in quotes where they hold a delimiter or a quote",
            remedy="Correct this line, or remove it",
        ) from None


def _read_json_lines(path: Path) -> TextTable:
    with path.open(encoding="utf-8-sig") as lines:
        rows = [row for _, row in json_objects(lines, path)]
    names = list(dict.fromkeys(name for row in rows for name in row))
    return TextTable({name: [row.get(name) for row in rows] for name in names})


def _read_delimited(path: Path, joins_rest: bool) -> TextTable:
    with path.open(newline="", encoding="utf-8-sig") as opened:
        lines = list(opened)
    delimiter = _delimiter(next(iter(lines), ""))
    spans = [span for span in quoted_rows(lines, delimiter, path) if any(cell.strip() for cell in span[2])]
    names = [name.strip() for name in spans[0][2]] if spans else []
    rows = []
    for begin, _, cells in spans[1:]:
        if len(cells) > len(names) and not joins_rest:
            raise ValueError(f"line {begin:,} has {len(cells)} cells and the header {len(names)}")
        first, rest = cells[: len(names) - 1], cells[len(names) - 1 :]
        row = [cell.strip() for cell in (*first, delimiter.join(rest))]
        rows.append(row + [""] * (len(names) - len(row)))
    columns: dict[str, list[Any]] = {}
    for position, name in enumerate(names):
        columns.setdefault(name, [row[position] for row in rows])
    return TextTable(columns, _find_swallowed(spans[1:], delimiter, path))


def _find_swallowed(
    spans: Iterable[tuple[int, int, list[str]]], delimiter: str, path: Path
) -> tuple[Finding, ...]:
    """Tell of rows with a cell of several lines of which a further one looks like a row of its own."""
    suspects = tuple(
        f"lines {begin:,} to {end:,}"
        for begin, end, row in spans
        if any(line.count(delimiter) >= len(row) - 1 > 0 for cell in row for line in cell.splitlines()[1:])
    )
    if not suspects:
        return ()
    return (
        Finding(
            "warning",
            "rows-in-a-cell",
            f"{number_of(len(suspects), 'row')} of {path.name} with a cell that holds what looks like "
            "further rows",
            "Nothing, if the line breaks are meant; else close the quote at the end of the first line",
            suspects,
        ),
    )


def _is_closed(lines: Sequence[str], delimiter: str) -> bool:
    """Tell whether every quote that opens a cell closes it, too."""
    try:
        return bool(list(csv.reader(lines, delimiter=delimiter, strict=True)))
    except csv.Error:
        return False


def _unclosed(path: Path, line: int) -> DataError:
    return DataError(
        f"line {line:,} of {path} opens a quote that does not close its cell; the lines that follow would be "
        "part of it",
        expected='a quote (") at the beginning of a cell and one at its end',
        remedy='Close the quote, remove it, or double it ("") where it is part of a text',
    )


def _delimiter(header: str) -> str:
    return max("\t,;|", key=header.count)
