"""Columns of words and tags, with a blank line after each sentence: CoNLL, CoNLL-U, IOB."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from vitrail.core.errors import DataError
from vitrail.data.findings import number_of
from vitrail.data.formats import Format
from vitrail.data.splits import assign_splits
from vitrail.data.tables import PEEK, tables_of
from vitrail.data.text.lines import read_content, read_lines, split_lines
from vitrail.tasks.labelling.dataset import RawTexts, TextRow
from vitrail.tasks.labelling.settings import TextDataSettings

SUFFIXES = (".conll", ".conllu", ".iob", ".iob2", ".bio")
LIKELY = (*SUFFIXES, ".txt", ".tsv")
DOCUMENT = "-DOCSTART-"  # Tjong Kim Sang and De Meulder 2003: begins a document, and is no word
UNIVERSAL_COLUMNS, FORM, UPOS = 10, 1, 3  # of CoNLL-U


def recognises(path: Path, settings: TextDataSettings | None) -> bool:
    """Accept a file, or a folder with ``train.conll`` or the like, of even columns and blank lines."""
    files = tables_of(path, LIKELY)
    return bool(files) and all(_looks_like_columns(parts[0]) for parts in files.values())


def _looks_like_columns(path: Path) -> bool:
    if path.name.lower().removesuffix(".gz").endswith(SUFFIXES):
        return True
    try:
        content = read_content(path, PEEK)
    except DataError:
        return False
    lines = split_lines(content)[: -1 if len(content) == PEEK else None]  # the last one may be cut
    rows = [_columns(line) for line in lines if line.strip() and not line.startswith(("#", DOCUMENT))]
    widths = {len(row) for row in rows}
    has_blank = not all(map(str.strip, lines))
    has_sentences = any(sum(" " in cell for cell in row) > 1 for row in rows)  # in two languages
    return len(widths) == 1 and min(widths) > 1 and has_blank and not has_sentences


def read(path: Path, settings: TextDataSettings) -> RawTexts:
    """Read one file, or those of the splits in a folder.

    Raises:
        DataError: a line has another number of columns, or there is no such column.
    """
    files = tables_of(path, LIKELY)
    chosen, findings = assign_splits(files, str(path))
    splits = {
        split: [row for file in files[stem] for row in read_sentences(file, settings.tag_column)]
        for split, stem in chosen.items()
    }
    return RawTexts("words", splits, findings)


def read_sentences(path: Path, tag_column: int | None = None) -> Iterator[TextRow]:
    """Yield the sentences of one file, named by their first lines; raises as ``read``."""
    width = column = 0
    found: list[tuple[int, list[str]]] = []
    for number, line in enumerate([*read_lines(path), ""], start=1):
        columns = _columns(line)
        if not columns and found:
            if width == UNIVERSAL_COLUMNS:  # 3-4 joins two words, 5.1 is not written
                found = [entry for entry in found if entry[1][0].isdigit()]
            words = tuple(entry[FORM if width == UNIVERSAL_COLUMNS else 0] for _, entry in found)
            yield TextRow(words, tuple(entry[column] for _, entry in found), f"{path.name}:{found[0][0]}")
            found = []
        # a comment, or a line of the word #, which has as many columns as the others
        if not columns or columns[0] == DOCUMENT or (line.startswith("#") and len(columns) != width):
            continue
        if not width:
            width = len(columns)
            column = _tag_column(path, number, width, tag_column)
        elif len(columns) != width:
            given = number_of(len(columns), "column")
            raise DataError(
                f"line {number:,} of {path} has {given}, and the lines before it {width}",
                expected="one tag for every word: equally many columns on all lines of words",
                remedy="Write the missing word or tag, or remove the line",
            )
        found.append((number, columns))


def _tag_column(path: Path, number: int, width: int, chosen: int | None) -> int:
    column = (UPOS if width == UNIVERSAL_COLUMNS else -1) if chosen is None else chosen
    if width > 1 and -width <= column < width:
        return column
    given = number_of(width, "column")
    raise DataError(
        f"line {number:,} of {path} has {given}, and the tags are looked for in column {column}",
        expected="a word and its tag on each line, with a space or a tab between them",
        remedy="Write both on each line, or choose the column with --set data.tag_column=NUMBER",
    )


def _columns(line: str) -> list[str]:
    return [cell.strip() for cell in line.split("\t")] if line.strip() and "\t" in line else line.split()


FORMAT = Format(
    name="columns of words and tags",
    layout="a .conll, .conllu or .iob file with a word and its tag on each line and a blank line after each "
    "sentence, or a folder with train.conll (and test.conll) or the like",
    recognises=recognises,
    read=read,
    rank=10,
    suffixes=SUFFIXES,
)
