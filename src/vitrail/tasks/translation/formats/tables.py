"""Tables of sentence pairs: TSV and CSV with or without header, JSON lines, parquet, saved sets, the hub.

One column per language, columns ``source`` and ``target``, or one column ``translation`` with a text per
language. Quotes are literal in TSV; in CSV they enclose cells.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from vitrail.core.errors import DataError
from vitrail.data.file_places import is_image_name
from vitrail.data.findings import Finding
from vitrail.data.formats import Format
from vitrail.data.hub_sets import HubSet, cached_features, load_named, load_saved, saved_features
from vitrail.data.splits import SplitName, assign_splits, rows_by_split
from vitrail.data.tables import (
    IMAGE_COLUMNS,
    JSON_SUFFIXES,
    LABEL_COLUMNS,
    Prose,
    Table,
    arrow_columns,
    column_names,
    read_table,
    rows_at_the_start,
    simplify,
    tables_of,
)
from vitrail.data.text.languages import (
    COMMON_WORDS,
    LANGUAGE,
    SIDES,
    Languages,
    check_distinct,
    choose_languages,
    is_language,
    language_of,
    languages_in,
    short_code,
)
from vitrail.tasks.translation.dataset import PairSplit, RawPairs

SOURCE_COLUMNS = ("source", "src", "source_text", "source_sentence")
TARGET_COLUMNS = ("target", "tgt", "trg", "target_text", "target_sentence")
STRUCT_COLUMN = "translation"
"""A column with one text per language, as on the Hugging Face hub."""

DELIMITED = (".tsv", ".csv", ".txt")
KINDS = (DELIMITED, JSON_SUFFIXES, (".parquet",))
"""Suffixes of tables, those of one kind together; the first kind that holds pairs is read."""
EXPECTED = 'an object such as {"en": "...", "de": "..."} on each line'
MOST = 0.8  # fraction of the rows that must agree with a guess about all
NUMBER = re.compile(r"\s*[-+]?[\d.,:/ ]+%?\s*")
LINE_ENDS = re.compile(r"[ \t]*[\r\n]+[ \t]*")
NAME = re.compile(r"^[A-Za-z0-9][\w.-]*/(?P<name>[\w.-]+)(/(?P<config>[\w.-]+))?$")
TELLING = re.compile(
    r"wmt|iwslt|opus|europarl|tatoeba|multi30k|flores|translation|parallel|bitext|nllb", re.I
)


def _files_of(path: Path, wanted: Languages | None) -> dict[str, list[Path]]:
    """Return the tables of a path whose first row is a pair, of one kind; those of a folder by split.

    Delimited text needs no header if its first two columns hold sentences.
    """
    for suffixes in KINDS:
        files = tables_of(path, suffixes)
        if files and _holds_pairs(next(iter(files.values()))[0], suffixes, wanted):
            return files
    return {}


def _holds_pairs(file: Path, suffixes: tuple[str, ...], wanted: Languages | None) -> bool:
    with suppress(OSError, DataError, csv.Error):
        if suffixes is not DELIMITED:
            return are_pairs(column_names(file, STRUCT_COLUMN), wanted)
        rows = rows_at_the_start(file, _prose(wanted))
        return bool(rows) and (are_pairs(_header(rows), wanted) or _are_sentences(rows))
    return False


def read(path: Path, wanted: Languages | None) -> RawPairs:
    """Read one table, possibly with a split column, or those of the splits in a folder.

    Raises:
        DataError: a table is damaged, has no recognised columns or no row, or a row is of no known split.
    """
    files = _files_of(path, wanted) or tables_of(path, [suffix for kind in KINDS for suffix in kind])
    parts, findings = assign_splits(files, str(path))

    def read_one(file: Path) -> Table:
        return read_table(file, prose=_prose(wanted), wanted=_is_plain, flattened=STRUCT_COLUMN)

    tables = {split: [*map(read_one, files[stem])] for split, stem in parts.items()}
    return _join(tables, wanted, str(path), findings)


def find_columns(
    columns: Sequence[str], wanted: Languages | None, where: str
) -> tuple[Languages, tuple[str, str], tuple[Finding, ...]]:
    """Return the languages, their columns, and findings about decisions that the user did not make.

    Columns named by languages take precedence over ``source`` and ``target``.

    Raises:
        DataError: no two columns are recognised, or too many.
    """
    if wanted is not None:
        check_distinct(wanted)
    sides = _side_columns(columns)
    named = _language_columns(columns).items()
    available = {code: name for code, name in named if sides is None or name not in sides}
    if wanted is not None and set(wanted) <= set(columns):
        return wanted, wanted, ()
    if sides is not None and len(available) < 2:
        return wanted or SIDES, sides, ()
    if len(available) < 2:
        raise DataError(
            f"{where} has the columns {', '.join(map(repr, columns)) or 'none'}",
            expected="a column for each language, named by it (en, de; English, German) or 'source' and "
            "'target'",
            remedy="Rename the columns",
        )
    languages, findings = choose_languages(list(available), wanted, where)
    return languages, (available[languages[0]], available[languages[1]]), findings


def are_pairs(columns: Sequence[str], wanted: Languages | None) -> bool:
    """Return whether column names suggest pairs; labelled images take precedence."""
    if wanted is not None and set(wanted) <= set(columns):
        return True
    lower = {simplify(name) for name in columns}
    if lower.intersection(IMAGE_COLUMNS) and lower.intersection(LABEL_COLUMNS):
        return False
    return len(_language_columns(columns)) > 1 or _side_columns(columns) is not None


def _join(
    tables: Mapping[SplitName, Sequence[Table]],
    wanted: Languages | None,
    where: str,
    findings: Sequence[Finding] = (),
) -> RawPairs:
    """Join the tables of each split, in the languages of the first one; a column may divide one of training.

    Raises:
        DataError: a table has no recognised columns, a cell that is not text, or no row.
    """
    every = [table for part in tables.values() for table in part]
    first = tables["train"][0] if "train" in tables else every[0]
    languages, _, chosen = find_columns(_named(first), wanted, first.path.name)
    found = [*findings, *chosen, *(finding for table in every for finding in table.findings)]
    rows: dict[SplitName, list[tuple[str, str, str]]] = {}
    for split, part in tables.items():
        for table in part:
            _, columns, _ = find_columns(_named(table), languages, table.path.name)
            pairs = [*zip(*(_texts(table, column) for column in columns), table.names, strict=True)]
            inside = rows_by_split(table.columns, table.names.__getitem__) if [*tables] == ["train"] else {}
            for named, indices in (inside or {split: [*range(len(pairs))]}).items():
                rows.setdefault(named, []).extend(pairs[index] for index in indices)
        if not any(table.names for table in part):
            raise DataError(
                f"{', '.join(table.path.name for table in part)} in {where} has no row",
                expected="a row for each pair of sentences",
                remedy="Write the rows, or remove the file",
            )
    splits = {split: PairSplit(*zip(*pairs, strict=True)) for split, pairs in rows.items()}
    return RawPairs(languages, splits, tuple(found))


def _named(table: Table) -> list[str]:
    """Return the columns, but for one named id that holds no sentences, which is not Indonesian."""
    return [name for name in table.columns if name != "id" or any(" " in str(c) for c in table.columns[name])]


def _language_columns(columns: Sequence[str]) -> dict[str, str]:
    """Return the columns that are named by languages, by their codes."""
    found = {code: name for name in reversed(columns) if (code := language_of(name))}
    if (
        len(columns) == 2
        and all(map(LANGUAGE.match, columns))
        and COMMON_WORDS.keys() & map(short_code, found)
    ):
        return dict(zip(columns, columns, strict=True))  # a code that is not listed, beside a common one
    return dict(reversed(found.items()))


def _side_columns(columns: Sequence[str]) -> tuple[str, str] | None:
    by_name = {simplify(name): name for name in reversed(columns)}
    source, target = (
        next((by_name[name] for name in known if name in by_name), None)
        for known in (SOURCE_COLUMNS, TARGET_COLUMNS)
    )
    return None if source is None or target is None else (source, target)


def _texts(table: Table, column: str) -> Iterator[str]:
    """Yield the sentences of a column on one line each; missing ones are empty."""
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


def _prose(wanted: Languages | None) -> Prose:
    return Prose(lambda columns: are_pairs(columns, wanted), _unnamed, EXPECTED)


def _unnamed(path: Path, rows: Sequence[Sequence[str]]) -> Sequence[str]:
    """Return the languages in a file name, else source and target, for the first columns without numbers."""
    languages = languages_in(path.name.partition(".")[0]) or languages_in(path.name) or SIDES
    columns = _text_columns(rows)
    return [
        languages[columns.index(column)] if column in columns else f"number {column}"
        for column in range(columns[-1] + 1)
    ]


def _text_columns(rows: Sequence[Sequence[str]]) -> list[int]:
    """Return the first two columns that do not hold numbers, such as Tatoeba's of sentences."""
    width = max((len(row) for row in rows), default=2)
    texts = [
        column
        for column in range(width)
        if not all(NUMBER.fullmatch(row[column]) for row in rows if len(row) > column)
    ]
    return texts[:2] if len(texts) > 1 else [0, 1]


def _is_plain(name: str, kind: Any) -> bool:
    from pyarrow import types

    return not types.is_nested(kind) and not types.is_binary(kind)


def _header(rows: Sequence[Sequence[str]]) -> list[str]:
    return [name.strip() for name in rows[0]]


def _are_sentences(rows: Sequence[Sequence[str]]) -> bool:
    """Return whether the first two columns of text in a table without header look like sentences."""
    filled = [row for row in rows if any(cell.strip() for cell in row)]
    wide = [row for row in filled if len(row) > 1]
    if not wide or len(wide) < MOST * len(filled):
        return False
    if any(name.lower() in IMAGE_COLUMNS for name in _header(filled)):
        return False
    columns = _text_columns(wide)
    return all(_is_text([row[column].strip() for row in wide if len(row) > column]) for column in columns)


def _is_text(cells: Sequence[str]) -> bool:
    """Distinguish sentences from numbers, file names and single words."""
    if not any(" " in cell or not cell.isascii() for cell in cells):  # some languages do not use spaces
        return False
    others = sum(bool(NUMBER.fullmatch(cell)) or is_image_name(cell) for cell in cells)
    return others <= (1 - MOST) * len(cells)


def is_of_pairs(name: str) -> bool:
    """Guess offline whether a hub data set holds pairs: by its configuration, its name, or the cache."""
    match = NAME.match(name)
    if match is None:
        return False
    parted = [(match["config"] or "").split(separator) for separator in "-_"]
    if any(len(parts) == 2 and all(map(is_language, parts)) for parts in parted):
        return True
    return bool(TELLING.search(match["name"])) or _describe_pairs(cached_features(name), None)


def read_by_name(name: str, wanted: Languages | None) -> RawPairs:
    """Read a data set by its hub name, ``owner/name[/config]``; the local cache needs no network."""
    return _convert(load_named(name), wanted)


def _convert(loaded: HubSet, wanted: Languages | None) -> RawPairs:
    loaded.demand()
    tables = {}
    for split, rows in loaded.splits.items():
        columns = arrow_columns(rows.with_format("arrow")[:], _is_plain, STRUCT_COLUMN)
        tables[split] = [Table(Path(loaded.name), columns, loaded.row_names(split))]
    return _join(tables, wanted, loaded.name, loaded.findings)


def _describe_pairs(described: Sequence[Mapping[str, Any]], wanted: Languages | None) -> bool:
    """Return whether some description of features is one of pairs."""
    return any(are_pairs(_described_columns(features), wanted) for features in described)


def _described_columns(features: Mapping[str, Any]) -> list[str]:
    """Return the columns in a feature description; ``translation`` by its fields."""
    struct = features.get(STRUCT_COLUMN)
    if not isinstance(struct, Mapping):
        return [*features]
    return [*(struct.get("languages", ()) if struct.get("_type") == "Translation" else struct)]


FORMATS = (
    Format(
        name="Hugging Face data set of pairs",
        layout="a folder that save_to_disk of the package datasets wrote, with a column translation, or a "
        "column for each language",
        recognises=lambda path, wanted: _describe_pairs(saved_features(path), wanted),
        read=lambda path, wanted: _convert(load_saved(path), wanted),
        rank=5,
    ),
    Format(
        name="table of pairs",
        layout="a .tsv, .txt (tabs) or .csv file with two columns, or with a header that names them (en, de; "
        "source, target); a .jsonl or .parquet file with such fields, or with translation, a text for each "
        "language; or a folder with train.tsv (val.tsv, test.tsv) or the like",
        recognises=lambda path, wanted: bool(_files_of(path, wanted)),
        read=read,
        rank=20,
        suffixes=(".tsv", ".csv", *JSON_SUFFIXES, ".parquet"),
    ),
)
