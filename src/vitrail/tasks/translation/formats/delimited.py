"""Columns of sentences divided by tabs (TSV, as it is: quotes are text) or by commas (CSV, quoted)."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from vitrail.core.errors import DataError
from vitrail.data.file_places import is_image_name
from vitrail.data.findings import Finding
from vitrail.data.tables import IMAGE_COLUMNS, quoted_rows
from vitrail.data.text.languages import SIDES, Languages, languages_in
from vitrail.data.text.lines import GZIP_SUFFIX, read_content, read_lines, split_lines
from vitrail.tasks.translation.columns import PairTable, are_pairs, read_tables, tables_of
from vitrail.tasks.translation.formats.contract import PairFormat, RawPairs

SUFFIXES = (".tsv", ".csv", ".txt")
DELIMITERS = ",;|\t"  # of a file .csv, which spreadsheets write in several ways
PEEKED_BYTES = 1 << 16  # of the first file
MOST = 0.8  # share of the rows that must look alike for a guess about all
NUMBER = re.compile(r"\s*[-+]?[\d.,:/ ]+%?\s*")


def recognises(path: Path, wanted: Languages | None) -> bool:
    """Accept a file, or a folder with ``train.tsv`` or the like, whose columns are pairs.

    They are named so in the first row, or there is no such row and the first two columns hold sentences.
    """
    try:
        for files in tables_of(path, SUFFIXES).values():
            content = read_content(files[0], PEEKED_BYTES)
            lines = split_lines(
                content[: content.rfind(b"\n") + 1] if len(content) == PEEKED_BYTES else content
            )
            rows = [row for row, _ in _up_to_damage(_divide(lines, files[0], wanted))]
            return bool(rows) and (are_pairs(_header(rows), wanted) or _are_sentences(rows))
    except DataError:
        return False
    return False


def read(path: Path, wanted: Languages | None) -> RawPairs:
    """Read one file, or those of the splits in a folder.

    Raises:
        DataError: a file is damaged, has no recognised columns or no row.
    """
    return read_tables(path, wanted, SUFFIXES, lambda file: _read_table(file, wanted))


def _read_table(path: Path, wanted: Languages | None) -> PairTable:
    found = list(_divide(read_lines(path), path, wanted))
    rows, numbers = [row for row, _ in found], [number for _, number in found]
    label = path.name.removesuffix(GZIP_SUFFIX)
    if rows and are_pairs(_header(rows), wanted):
        header = _header(rows)
        rows, numbers = rows[1:], numbers[1:]
    elif max((len(row) for row in rows), default=2) < 2:
        raise DataError(
            f"{path} has one column alone",
            expected="the two sides of a pair in one row, divided by a tab in .tsv and by a comma in .csv",
            remedy="Write both sides into each row, or give two files, STEM.en and STEM.de",
        )
    else:
        header = list(languages_in(path.name.partition(".")[0]) or languages_in(path.name) or SIDES)
    columns = {
        name: [row[place] if place < len(row) else "" for row in rows]
        for place, name in reversed(list(enumerate(header)))  # of equal names the first one counts
    }
    columns = {name: columns[name] for name in header}
    names = [f"{label}:{number}" for number in numbers]
    return PairTable(columns, names, _report_odd_rows(rows, names, label))


def _divide(lines: list[str], path: Path, wanted: Languages | None) -> Iterator[tuple[list[str], int]]:
    """Yield the cells of every row, and the number of the line on which it ends."""
    if path.name.lower().removesuffix(GZIP_SUFFIX).endswith(".csv"):
        with_ends = [f"{line}\n" for line in lines]
        rows = quoted_rows(with_ends, _find_delimiter(lines, wanted), path)
        yield from ((row, end) for _, end, row in rows if row)
    else:
        yield from ((line.split("\t"), number) for number, line in enumerate(lines, start=1))


def _up_to_damage(rows: Iterator[tuple[list[str], int]]) -> Iterator[tuple[list[str], int]]:
    """Yield rows up to one that cannot be read, as the last of those that a cheap look takes may be."""
    with suppress(DataError):
        yield from rows


def _find_delimiter(lines: Sequence[str], wanted: Languages | None) -> str:
    first = lines[:50]
    for delimiter in DELIMITERS:
        header = next(iter(csv.reader(first[:1], delimiter=delimiter)), [])
        if are_pairs([name.strip() for name in header], wanted):
            return delimiter

    def agreement(delimiter: str) -> tuple[bool, int]:
        widths = Counter(len(row) for row in csv.reader(first, delimiter=delimiter) if row)
        width, number = widths.most_common(1)[0] if widths else (0, 0)
        return width > 1, number

    return max(DELIMITERS, key=agreement)


def _header(rows: Sequence[Sequence[str]]) -> list[str]:
    return [name.strip() for name in rows[0]]


def _are_sentences(rows: Sequence[Sequence[str]]) -> bool:
    """Tell whether the first two columns of a table without a header look like sentences."""
    filled = [row for row in rows if any(cell.strip() for cell in row)]
    wide = [row for row in filled if len(row) > 1]
    if not wide or len(wide) < MOST * len(filled):
        return False
    if any(name.lower() in IMAGE_COLUMNS for name in _header(filled)):
        return False
    return all(_is_text([row[place].strip() for row in wide]) for place in (0, 1))


def _is_text(cells: Sequence[str]) -> bool:
    """Tell sentences from numbers, names of files and single words."""
    if not any(" " in cell or not cell.isascii() for cell in cells):  # some languages put no spaces
        return False
    others = sum(bool(NUMBER.fullmatch(cell)) or is_image_name(cell) for cell in cells)
    return others <= (1 - MOST) * len(cells)


def _report_odd_rows(rows: Sequence[Sequence[str]], names: Sequence[str], label: str) -> tuple[Finding, ...]:
    widths = Counter(len(row) for row in rows)
    if len(widths) < 2:
        return ()
    usual = widths.most_common(1)[0][0]
    odd = tuple(name for name, row in zip(names, rows, strict=True) if len(row) != usual)
    return (
        Finding(
            "warning",
            "odd-rows",
            f"{len(odd)} rows of {label} have another number of cells than the {usual} of most",
            "A missing cell is read as empty and a further one is not read; look at these rows",
            odd,
        ),
    )


FORMAT = PairFormat(
    name="table of pairs",
    layout="a .tsv, .txt (tabs) or .csv file with two columns, or with a header that names them (en, de; "
    "source, target), or a folder with train.tsv (val.tsv, test.tsv) or the like",
    recognises=recognises,
    read=read,
    rank=20,
    suffixes=(".tsv", ".csv"),
)
