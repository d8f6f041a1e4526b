"""Rows of tables to pairs: which column is which language, and which table which split."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vitrail.core.errors import DataError
from vitrail.data.findings import Finding
from vitrail.data.splits import SplitName, rows_by_split
from vitrail.data.tables import IMAGE_COLUMNS, LABEL_COLUMNS
from vitrail.data.text.languages import SIDES, Languages, check_distinct, choose_languages, is_language
from vitrail.data.text.lines import GZIP_SUFFIX
from vitrail.tasks.translation.dataset import PairSplit
from vitrail.tasks.translation.formats.contract import RawPairs
from vitrail.tasks.translation.parts import assign_splits, split_of

SOURCE_COLUMNS = ("source", "src", "source_text", "source_sentence")
TARGET_COLUMNS = ("target", "tgt", "trg", "target_text", "target_sentence")
STRUCT_COLUMN = "translation"
"""A column of one text for each language, as the Hugging Face hub has it."""

SHARD = re.compile(r"-\d{5}-of-\d{5}$")  # the hub's naming of the parts of a table
LINE_ENDS = re.compile(r"[ \t]*[\r\n]+[ \t]*")


@dataclass(frozen=True)
class PairTable:
    """The columns of one file."""

    columns: Mapping[str, Sequence[Any]]
    """Values by column name; a struct named ``translation`` stands as one column for each of its fields."""
    names: Sequence[str]
    """What to call each row, such as ``rows.tsv:17``."""
    findings: tuple[Finding, ...] = ()
    """What was noticed while reading."""

    def take(self, rows: Sequence[int]) -> PairTable:
        """Return some rows, without what was noticed of all."""
        columns = {name: [values[row] for row in rows] for name, values in self.columns.items()}
        return PairTable(columns, [self.names[row] for row in rows])


TableReader = Callable[[Path], PairTable]


def find_columns(
    columns: Sequence[str], wanted: Languages | None, where: str
) -> tuple[Languages, tuple[str, str], tuple[Finding, ...]]:
    """Decide which columns hold the source and the target side.

    Columns named by languages go before columns named ``source`` and ``target``.

    Returns:
        languages: what to call the sides.
        chosen: the two columns.
        findings: what was decided without being asked for.

    Raises:
        DataError: no two columns are recognised, or too many.
    """
    if wanted is not None:
        check_distinct(wanted)
    sides = _side_columns(columns)
    available = [name for name in _language_columns(columns) if sides is None or name not in sides]
    if wanted is not None and set(wanted) <= set(columns):
        return wanted, wanted, ()
    if sides is not None and len(available) < 2:
        return wanted or SIDES, sides, ()
    if len(available) < 2:
        raise DataError(
            f"{where} has the columns {', '.join(map(repr, columns)) or 'none'}",
            expected="a column for each language, named by its code (en, de) or 'source' and 'target'",
            remedy="Rename the columns",
        )
    languages, findings = choose_languages(available, wanted, where)
    return languages, languages, findings


def are_pairs(columns: Sequence[str], wanted: Languages | None) -> bool:
    """Tell by the names of its columns whether a table holds pairs; images with labels go first."""
    if wanted is not None and set(wanted) <= set(columns):
        return True
    lower = {_simplify(name) for name in columns}
    if lower.intersection(IMAGE_COLUMNS) and lower.intersection(LABEL_COLUMNS):
        return False
    return len(_language_columns(columns)) > 1 or _side_columns(columns) is not None


def tables_of(path: Path, suffixes: Sequence[str]) -> dict[str, list[Path]]:
    """Return the tables that a path holds: of a file itself, of a folder those in it or in its ``data/``.

    Returns:
        Files by the name that they share, without suffix and number of the part. In a folder they are named
        after splits, or there is one file alone.
    """
    if path.is_file():
        stem = _stem(path.name, suffixes)
        return {} if stem is None else {stem: [path]}
    for place in (path, path / "data"):
        if not place.is_dir():
            continue
        found: dict[str, list[Path]] = {}
        for entry in sorted(place.iterdir()):
            stem = _stem(entry.name, suffixes)
            if stem is not None and entry.is_file():
                found.setdefault(stem, []).append(entry)
        named = {stem: files for stem, files in found.items() if split_of(stem) is not None}
        if named or len(found) == 1:
            return named or found
    return {}


def read_tables(
    path: Path, wanted: Languages | None, suffixes: Sequence[str], read_table: TableReader
) -> RawPairs:
    """Read one table, which a column of splits may divide, or those of the splits in a folder.

    Raises:
        DataError: a table is damaged, has no recognised columns or no row, or a row is of no known split.
    """
    files = tables_of(path, suffixes)
    parts, findings = assign_splits(files, str(path))
    tables = {split: [(file.name, read_table(file)) for file in files[stem]] for split, stem in parts.items()}
    if set(tables) == {"train"}:
        tables = _divide(tables["train"])
    return join_tables(tables, wanted, str(path), findings)


def join_tables(
    tables: Mapping[SplitName, Sequence[tuple[str, PairTable]]],
    wanted: Languages | None,
    where: str,
    findings: Sequence[Finding] = (),
) -> RawPairs:
    """Join the tables of one or several splits, each with its name, in the languages of the first one.

    Raises:
        DataError: a table has no recognised columns, a cell that is no text, or no row.
    """
    every = [named for part in tables.values() for named in part]
    first = tables["train"][0] if "train" in tables else every[0]
    languages, _, chosen = find_columns(list(first[1].columns), wanted, first[0])
    found = [*findings, *chosen, *(finding for _, table in every for finding in table.findings)]
    splits: dict[SplitName, PairSplit] = {}
    for split, part in tables.items():
        sources: list[str] = []
        targets: list[str] = []
        names: list[str] = []
        for name, table in part:
            _, columns, _ = find_columns(list(table.columns), languages, name)
            sources += _texts(table, columns[0])
            targets += _texts(table, columns[1])
            names += table.names
        if not names:
            raise DataError(
                f"{', '.join(name for name, _ in part)} in {where} has no row",
                expected="a row for each pair of sentences",
                remedy="Write the rows, or remove the file",
            )
        splits[split] = PairSplit(sources, targets, names)
    return RawPairs(languages, splits, tuple(found))


def _divide(parts: Sequence[tuple[str, PairTable]]) -> dict[SplitName, list[tuple[str, PairTable]]]:
    """Divide the parts of a table by its column of splits, if it has one."""
    tables: dict[SplitName, list[tuple[str, PairTable]]] = {}
    for name, table in parts:
        by_split = rows_by_split(table.columns, table.names.__getitem__)
        divided = {split: table.take(rows) for split, rows in by_split.items()} or {"train": table}
        first = next(iter(divided))
        divided[first] = replace(divided[first], findings=table.findings)  # each is told once
        for split, part in divided.items():
            tables.setdefault(split, []).append((name, part))
    return tables


def flatten_translation(rows: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield rows in which the texts of a ``translation`` stand beside each other instead of in it."""
    for row in rows:
        inner = row.get(STRUCT_COLUMN)
        yield inner if isinstance(inner, Mapping) else row


def _language_columns(columns: Sequence[str]) -> list[str]:
    found = [name for name in columns if is_language(name)]
    # a third column named id counts rows; it is not Indonesian
    return [name for name in found if name != "id"] if len(found) > 2 else found


def _side_columns(columns: Sequence[str]) -> tuple[str, str] | None:
    by_name = {_simplify(name): name for name in reversed(columns)}
    sources = [by_name[name] for name in SOURCE_COLUMNS if name in by_name]
    targets = [by_name[name] for name in TARGET_COLUMNS if name in by_name]
    return (sources[0], targets[0]) if sources and targets else None


def _simplify(name: str) -> str:
    return name.strip().lower().replace(" ", "_")


def _stem(name: str, suffixes: Sequence[str]) -> str | None:
    """Return the name of a table without its suffix and the number of the part; None of any other file."""
    plain = name.removesuffix(GZIP_SUFFIX)
    stem, dot, suffix = plain.rpartition(".")
    if name.startswith(".") or f".{suffix.lower()}" not in suffixes or not dot:
        return None
    return SHARD.sub("", stem)


def _texts(table: PairTable, column: str) -> Iterator[str]:
    """Yield the sentences of a column, each on one line; what is missing is empty."""
    for name, value in zip(table.names, table.columns[column], strict=True):
        if isinstance(value, str):
            yield LINE_ENDS.sub(" ", value) if "\n" in value or "\r" in value else value
        elif value is None or (isinstance(value, float) and value != value):
            yield ""
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield str(value)
        else:
            raise DataError(
                f"{name} holds {type(value).__name__} in the column {column!r}",
                expected="one sentence as text",
                remedy="Write one sentence for each language into each row",
            )
