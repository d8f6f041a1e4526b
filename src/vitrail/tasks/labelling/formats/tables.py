"""Tables of texts with labels, or of words with tags: CSV, TSV, JSON lines and parquet."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from vitrail.core.errors import DataError
from vitrail.data.findings import Finding, counted
from vitrail.data.formats import Format
from vitrail.data.splits import SplitName, assign_splits
from vitrail.data.tables import (
    IMAGE_COLUMNS,
    LABEL_COLUMNS,
    TABLE_SUFFIXES,
    Prose,
    Table,
    class_names_in,
    column_names,
    find_column,
    label_text,
    read_table,
    simplify,
    tables_of,
)
from vitrail.data.text_preprocessing import Labels
from vitrail.tasks.labelling.dataset import RawTexts, TextRow

TEXT_COLUMNS = (
    "text", "sentence", "content", "review", "document", "message", "comment", "tweet", "headline", "title",
    "question", "utterance", "description", "abstract", "body",
)  # fmt: skip
TEXT_LABELS = (*LABEL_COLUMNS, "sentiment", "topic", "intent", "polarity", "rating", "stars", "language")
WORD_COLUMNS = ("tokens", "words")
TAG_COLUMNS = ("tags", "ner_tags", "pos_tags", "upos", "chunk_tags", "labels")


def recognises(path: Path, tag_column: int | None) -> bool:
    """Accept a table with a column of texts and one of labels, or of words and of tags, without images."""
    files = tables_of(path, TABLE_SUFFIXES)
    return bool(files) and _kind_of(column_names(next(iter(files.values()))[0])) is not None


def read(path: Path, tag_column: int | None) -> RawTexts:
    """Read one table, which may have a column of splits, or those of the splits in a folder.

    Raises:
        DataError: a table is damaged, or a text has another number of words than of tags.
    """
    files = tables_of(path, TABLE_SUFFIXES)
    chosen, found = assign_splits(files, str(path))
    tables = {split: [_read_table(file) for file in files[stem]] for split, stem in chosen.items()}
    every = [table for part in tables.values() for table in part]
    kind = _kind_of([*every[0].columns]) or "sentence"
    if set(tables) == {"train"}:
        tables = _divide(tables["train"])
    rows: dict[SplitName, list[TextRow]] = {}
    dropped: list[str] = []
    for split, part in tables.items():
        each = [row for table in part for row in _rows(table, kind)]
        rows[split] = [row for row in each if isinstance(row, TextRow)]
        dropped += [row for row in each if isinstance(row, str)]
    findings: list[Finding] = [*found, *(finding for table in every for finding in table.findings)]
    findings += counted(
        dropped, "warning", "unlabelled-rows", "row", "without a label", "Left out; complete or remove them"
    )
    return RawTexts(kind, rows, tuple(findings))


def _read_table(path: Path) -> Table:
    prose = Prose(lambda columns: _kind_of(columns) is not None, lambda path: ())
    return read_table(path, prose=prose, wanted=lambda name, kind: _is_known(name))


def _divide(parts: Sequence[Table]) -> dict[SplitName, list[Table]]:
    tables: dict[SplitName, list[Table]] = {}
    for table in parts:
        for split, rows in (table.rows_by_split() or {"train": [*range(len(table.names))]}).items():
            tables.setdefault(split, []).append(table.take(rows))
    return tables


def _kind_of(columns: Sequence[str]) -> Labels | None:
    """Return whether a table labels words or texts, by its columns; None if neither."""
    lower = set(map(simplify, columns))
    if lower.intersection(IMAGE_COLUMNS):
        return None
    if lower.intersection(WORD_COLUMNS) and lower.intersection(TAG_COLUMNS):
        return "words"
    return "sentence" if lower.intersection(TEXT_COLUMNS) and lower.intersection(TEXT_LABELS) else None


def _is_known(name: str) -> bool:
    known = (*TEXT_COLUMNS, *TEXT_LABELS, *WORD_COLUMNS, *TAG_COLUMNS, "split", "set", "subset", "partition")
    return simplify(name) in known


def _rows(table: Table, kind: Labels) -> Iterator[TextRow | str]:
    """Yield the rows of a table, or the name of one without a label."""
    columns, called = list(table.columns), table.path.name
    texts, labels = (WORD_COLUMNS, TAG_COLUMNS) if kind == "words" else (TEXT_COLUMNS, TEXT_LABELS)
    text_column = find_column(columns, texts, "text", called)
    stored = class_names_in(table.features)
    label_column = find_column(
        columns,
        labels,
        "label",
        called,
        preferred=[*stored][:1] if kind == "sentence" else (),
        taken=text_column,
    )
    names = stored.get(label_column, ())
    cells = zip(table.columns[text_column], table.columns[label_column], table.names, strict=True)
    for text, label, name in cells:
        if kind == "sentence":
            given = label_text(names[label] if names and isinstance(label, int) and label >= 0 else label)
            yield name if given is None else TextRow((_one_line(text),), (given,), name)
            continue
        words, tags = _listed(text), _listed(label)
        if len(words) != len(tags):
            raise DataError(
                f"{name} has {len(words)} words and {len(tags)} tags",
                expected=f"a tag for each word, in the columns {text_column!r} and {label_column!r}",
                remedy="Correct this row, or remove it",
            )
        yield TextRow(words, tags, name)


def _one_line(value: Any) -> str:
    return "" if value is None or value != value else " ".join(str(value).split())


def _listed(value: Any) -> tuple[str, ...]:
    """Return the words of a cell: a list of them, or text with spaces between them."""
    return tuple(map(str, value)) if isinstance(value, list | tuple) else tuple(_one_line(value).split())


FORMAT = Format(
    name="table of labelled texts",
    layout="a CSV, TSV, JSON lines or parquet file with a column of texts (text, sentence) and one of "
    'labels, or with lists of words and of tags ({"tokens": [...], "tags": [...]}), or a folder with '
    "train.csv (and test.csv) or the like",
    recognises=recognises,
    read=read,
    rank=20,
)
