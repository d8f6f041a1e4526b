"""Columns of words and tags, with a blank line after each sentence: CoNLL, CoNLL-U, IOB."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from vitrail.core.errors import DataError
from vitrail.data.formats import Format
from vitrail.data.splits import assign_splits
from vitrail.data.tables import PEEK, tables_of
from vitrail.data.text.lines import read_content, read_lines, split_lines
from vitrail.tasks.labelling.dataset import RawTexts, TextRow

SUFFIXES = (".conll", ".conllu", ".iob", ".iob2", ".bio")
LIKELY = (*SUFFIXES, ".txt", ".tsv")
DOCUMENT = "-DOCSTART-"  # Tjong Kim Sang and De Meulder 2003: begins a document, and is no word
UNIVERSAL_COLUMNS, FORM, UPOS = 10, 1, 3  # of CoNLL-U


def recognises(path: Path, tag_column: int | None) -> bool:
    """Accept a file, or a folder with ``train.conll`` or the like, of even columns and blank lines."""
    files = tables_of(path, LIKELY)
    return bool(files) and all(_looks_like_columns(parts[0]) for parts in files.values())


def read(path: Path, tag_column: int | None) -> RawTexts:
    """Read one file, or those of the splits in a folder.

    Args:
        tag_column: counted from 0, or from the end if negative; None means the last one, of CoNLL-U the
            universal part of speech.

    Raises:
        DataError: a line has another number of columns, or there is no such column.
    """
    files = tables_of(path, LIKELY)
    chosen, findings = assign_splits(files, str(path))
    splits = {
        split: [row for file in files[stem] for row in read_sentences(file, tag_column)]
        for split, stem in chosen.items()
    }
    return RawTexts("words", splits, findings)


def read_sentences(path: Path, tag_column: int | None = None) -> Iterator[TextRow]:
    """Yield the sentences of one file, named by their first lines.

    Raises:
        DataError: as ``read``.
    """
    width, found = 0, []
    for number, line in enumerate([*read_lines(path), ""], start=1):
        cells = _cells(line)
        if cells and cells[0] != DOCUMENT and not _is_remark(line, cells, width):
            if width and len(cells) != width:
                raise DataError(
                    f"line {number:,} of {path} has {len(cells)} columns, and the lines before it {width}",
                    expected="one tag for every word: equally many columns on all lines of words",
                    remedy="Write the missing word or tag, or remove the line",
                )
            width = len(cells)
            found.append((number, cells))
        elif not cells and found:
            yield _sentence(path, found, width, tag_column)
            found = []


def _sentence(
    path: Path, found: Sequence[tuple[int, list[str]]], width: int, tag_column: int | None
) -> TextRow:
    is_universal = width == UNIVERSAL_COLUMNS
    column = (UPOS if is_universal else -1) if tag_column is None else tag_column
    if width < 2 or not -width <= column < width:
        raise DataError(
            f"line {found[0][0]:,} of {path} has {width} columns, and the tags are looked for in column "
            f"{column}",
            expected="a word and its tag on each line, with a space or a tab between them",
            remedy="Write both on each line, or choose the column with --set data.tag_column=NUMBER",
        )
    if is_universal:  # 3-4 joins two words, 5.1 is not written
        found = [entry for entry in found if entry[1][0].isdigit()]
    words = tuple(cells[FORM if is_universal else 0] for _, cells in found)
    return TextRow(words, tuple(cells[column] for _, cells in found), f"{path.name}:{found[0][0]}")


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.split("\t")] if line.strip() and "\t" in line else line.split()


def _is_remark(line: str, cells: Sequence[str], width: int) -> bool:
    """Tell comments from lines of the word #, which have as many columns as the others."""
    return line.startswith("#") and len(cells) != width


def _looks_like_columns(path: Path) -> bool:
    if path.name.lower().removesuffix(".gz").endswith(SUFFIXES):
        return True
    try:
        content = read_content(path, PEEK)
    except DataError:
        return False
    lines = split_lines(content)[: -1 if len(content) == PEEK else None]  # the last one may be cut
    widths = {len(_cells(line)) for line in lines if line.strip() and not line.startswith(("#", DOCUMENT))}
    return len(widths) == 1 and min(widths) > 1 and any(not line.strip() for line in lines)


FORMAT = Format(
    name="columns of words and tags",
    layout="a .conll, .conllu or .iob file with a word and its tag on each line and a blank line after each "
    "sentence, or a folder with train.conll (and test.conll) or the like",
    recognises=recognises,
    read=read,
    rank=10,
    suffixes=SUFFIXES,
)
