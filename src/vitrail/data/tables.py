"""Tables: CSV, TSV, JSON lines and Parquet as rows with named columns; errors name the file and the line.

Saved data sets and those of the hub become the same ``Table``s. A task says which columns it wants
(``find_column``) and what their values mean.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vitrail.core.errors import DataError, import_optional, reading
from vitrail.core.files import PACKED, expand, open_file, parse_json, read_file
from vitrail.data.file_places import forms_of, is_image_name, lies_in
from vitrail.data.findings import Finding, about, counted
from vitrail.data.splits import SplitName, leading_split, rows_by_split
from vitrail.data.text.lines import REPLACEMENT, check_encoding, read_content, read_lines, split_lines

TABLE_SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet")
JSON_SUFFIXES = (".jsonl", ".ndjson")
IMAGE_COLUMNS = (
    "image", "images", "img", "image_path", "img_path", "image_file", "file_name", "filename", "file",
    "filepath", "file_path", "path", "picture", "photo", "pixels",
)  # fmt: skip
LABEL_COLUMNS = (
    "label", "labels", "class", "class_name", "classname", "category", "target", "fine_label", "class_id",
    "label_id", "species", "breed", "tag", "y",
)  # fmt: skip
PEEK = 65536  # bytes of a table that a cheap look at its rows reads
PEEKED_BYTES = 1 << 20  # of a table, to find its first row
SHARD = re.compile(r"-\d{5}-of-\d{5}$")  # the Hugging Face hub's naming of the parts of a table
WORD = re.compile(r"[\w.+-]{1,40}")  # such as a label; not a sentence
LABEL_WORDS, MIN_REPEATS = 3, 5  # a label is not longer, and occurs as often on average
LOOKED_AT = 200  # rows that tell a header from data
OF_TEXTS = (
    " beside one of labels; of labelled texts, text and label; of sentence pairs, a column for each language "
    "(en, de)"
)
DELIMITERS = ",;|\t"  # spreadsheets write .csv in several ways
csv.field_size_limit(2**31 - 1)  # a text may be long; Python's limit is 131,072 characters


@dataclass(frozen=True)
class Table:
    """Rows with named columns: from one file, from its shards, or from a split of a saved data set."""

    path: Path
    """The file; image paths are relative to its folder."""
    columns: Mapping[str, Sequence[Any]]
    """Values by column name; of equal names the first one counts."""
    names: Sequence[str]
    """Name of each row for messages, such as ``rows.tsv:17`` (a line) or ``rows.parquet#3``."""
    features: Mapping[str, Any] = field(default_factory=dict)
    """The Hugging Face description of the columns, if a Parquet file has one."""
    fields: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The fields of the columns that hold objects or lists of them."""
    findings: tuple[Finding, ...] = ()

    def take(self, rows: Sequence[int]) -> Table:
        """Select rows; findings about the whole table are dropped."""
        columns = {name: [values[row] for row in rows] for name, values in self.columns.items()}
        return Table(self.path, columns, [self.names[row] for row in rows], self.features, self.fields)

    def rows_by_split(self) -> dict[SplitName, list[int]]:
        """Return the rows of each split; empty if no column divides the table."""
        return rows_by_split(self.columns, lambda row: f"row {row} of {self.path}")


@dataclass(frozen=True)
class Prose:
    """How tables of sentences are read, where quotes and stray bytes are part of the text.

    Files may be gzipped. Bytes that are not UTF-8 are replaced. Tab-separated files have no quoting; only
    ``.csv`` has. Rows of irregular length are findings, not errors.
    """

    are_columns: Callable[[Sequence[str]], bool]
    """Whether the first row is a header; else it is data."""
    unnamed: Callable[[Path, Sequence[Sequence[str]]], Sequence[str]]
    """Column names of a file without a header, by its rows."""
    json_line: str = "a JSON object on each line"


def read_table(
    path: Path,
    *,
    prose: Prose | None = None,
    joins_rest: bool = False,
    wanted: Callable[[str, Any], bool] = lambda name, kind: True,
    flattened: str = "",
) -> Table:
    """Read one file by its suffix; delimited rows unless it is ``.parquet`` or JSON lines.

    Args:
        prose: how sentences are read; by default, text is strict UTF-8 with a header.
        joins_rest: whether surplus cells are joined to the last column, as in unquoted captions; else a row
            of too many cells is an error.
        wanted: tells by name and Arrow type which Parquet columns are read; the others stay empty.
        flattened: a column of objects whose fields become columns themselves.

    Raises:
        DataError: it cannot be read, a line is malformed, or a quote is not closed.
    """
    expected = f"a complete {path.suffix} file, text encoded as UTF-8"
    remedy = "Write the file again, or remove it"
    with reading(path, expected=expected, remedy=remedy, error=DataError, done="read as a table"):
        if _suffix(path) == ".parquet":
            return _read_parquet(path, wanted, flattened)
        if _suffix(path) in JSON_SUFFIXES:
            return _read_json_lines(path, prose, flattened)
        return _read_delimited(path, joins_rest) if prose is None else _read_prose(path, prose)


def join_parts(parts: Sequence[Table]) -> Table:
    """Concatenate the shards of a table; a column that a shard lacks is None there."""
    if len(parts) == 1:
        return parts[0]
    columns: dict[str, list[Any]] = {name: [] for part in parts for name in part.columns}
    for part in parts:
        for name, values in columns.items():
            values.extend(part.columns.get(name, [None] * len(part.names)))
    first = parts[0]
    names = [f"{first.path.name}#{row}" for row in range(sum(len(part.names) for part in parts))]
    findings = tuple(finding for part in parts for finding in part.findings)
    return Table(first.path, columns, names, first.features, first.fields, findings)


def tables_in(
    folder: Path, suffixes: Sequence[str] = TABLE_SUFFIXES, *, compressed: bool = False
) -> dict[str, list[Path]]:
    """Group the tables of a folder by stem: the name without suffix and shard number."""
    found: dict[str, list[Path]] = {}
    for entry in sorted(folder.iterdir()) if folder.is_dir() else ():
        stem = table_stem(entry.name, suffixes, compressed=compressed)
        if stem is not None and entry.is_file():
            found.setdefault(stem, []).append(entry)
    return found


def tables_of(path: Path, suffixes: Sequence[str]) -> dict[str, list[Path]]:
    """Return the tables of a path: the file itself, or those in a folder or its ``data/``.

    In a folder they are named after splits, or there is a single file.
    """
    if path.is_file():
        stem = table_stem(path.name, suffixes, compressed=True)
        return {} if stem is None else {stem: [path]}
    for folder in (path, path / "data"):
        found = tables_in(folder, suffixes, compressed=True)
        named = {stem: files for stem, files in found.items() if leading_split(stem) is not None}
        if named or len(found) == 1:
            return named or found
    return {}


def table_stem(name: str, suffixes: Sequence[str], *, compressed: bool = False) -> str | None:
    """Strip a table's suffix and shard number; None for any other file."""
    plain = name.removesuffix(PACKED) if compressed else name
    stem, dot, suffix = plain.rpartition(".")
    if name.startswith(".") or f".{suffix.lower()}" not in suffixes or not dot:
        return None
    return SHARD.sub("", stem)


def column_names(path: Path, flattened: str = "") -> list[str]:
    """Peek at the columns of a table; empty if they cannot be told. ``flattened`` is as in ``read_table``."""
    names, fields = _peek(path)
    return fields.get(flattened) or names


def column_fields(path: Path) -> dict[str, list[str]]:
    """Peek at the fields of a table's columns of objects."""
    return _peek(path)[1]


def _peek(path: Path) -> tuple[list[str], dict[str, list[str]]]:
    """Return the columns of a table, and the fields of those of objects, as far as a cheap look tells."""
    try:
        if _suffix(path) == ".parquet":
            import pyarrow.parquet

            with open_file(path) as file:
                schema = pyarrow.parquet.read_schema(file)
            return list(schema.names), arrow_fields(schema)
        lines = [line for line in split_lines(read_content(path, PEEKED_BYTES)) if line.strip()]
        if _suffix(path) in JSON_SUFFIXES:
            row = parse_json(next(iter(lines), ""))
            row = row if isinstance(row, Mapping) else {}
            return list(row), {column: _keys(value) for column, value in row.items()}
        rows = csv.reader(lines[:LOOKED_AT], delimiter=max("\t,;|", key=next(iter(lines), "").count))
        return name_columns([*rows]), {}
    except (OSError, ValueError, ImportError, csv.Error):
        return [], {}


def name_columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the names of columns: the first row, or names by content if that is data like the others.

    It is if it names an image file, or has a text and a word that recurs.

    >>> name_columns([["a.png", "cat"], ["b.png", "dog"]])
    ['image', 'label']
    >>> name_columns([["label", "text"], ["dog", "It barks."]])
    ['label', 'text']
    """
    first = [cell.strip() for cell in next(iter(rows), ())]
    cells = [[cell.strip() for cell in row] for row in rows[:LOOKED_AT] if len(row) == len(first)]
    image = next((place for place, cell in enumerate(first) if is_image_name(cell)), None)
    if image is not None:
        names = [f"column {place + 1}" for place in range(len(first))]
        names[image] = "image"
        if len(first) == 2:
            lengths = sorted(len(row[1 - image].split()) for row in cells)
            names[1 - image] = "caption" if lengths[len(lengths) // 2] > LABEL_WORDS else "label"
        return names
    for place in range(2 if len(first) == 2 else 0):
        labels, texts = ([row[side] for row in cells] for side in (place, 1 - place))
        recurs = labels.count(first[place]) > 1 and MIN_REPEATS * len(set(labels)) <= len(labels)
        if recurs and all(map(WORD.fullmatch, labels)) and len(set(texts)) > len(set(labels)):
            return ["text", "label"] if place else ["label", "text"]
    return first


def rows_at_the_start(path: Path, prose: Prose) -> list[list[str]]:
    """Peek at the first rows of a table of sentences, up to one that is cut or damaged."""
    content = read_content(path, PEEK)
    lines = split_lines(content[: content.rfind(b"\n") + 1] if len(content) == PEEK else content)
    rows: list[list[str]] = []
    with suppress(DataError, csv.Error):
        rows.extend(row for row, _ in _prose_rows(lines, path, prose))  # keeps those before the damage
    return rows


def tell_tables(folder: Path) -> str:
    """Describe the tables of a folder and their columns in a clause for errors; empty if there are none.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "all.csv").write_text("picture_url,words\\na.png,a dog\\n")
    ...     tell_tables(Path(folder))
    "; all.csv has the columns 'picture_url', 'words', which do not tell images and labels or captions"
    """
    files = sorted(file for parts in tables_in(folder).values() for file in parts)
    named = {file.name: names for file in files if (names := column_names(file))}
    told = [f"{name} has the columns {', '.join(map(repr, names))}" for name, names in named.items()]
    if not told:
        return ""
    ends = ", which do not tell images and labels or captions"
    if any(not {*IMAGE_COLUMNS}.isdisjoint(map(simplify, names)) for names in named.values()):
        ends = f": name one of {len(told)} tables, or call them train and test"
    return f"; {'; '.join(told[:3])}{ends}"


def find_column(
    columns: Sequence[str],
    known: Sequence[str],
    what: str,
    table: Path | str,
    *,
    preferred: Sequence[str] = (),
    taken: str | None = None,
    named: str | None = None,
) -> str:
    """Return the column that holds the images, the labels or the like.

    Args:
        known: recognised names in lower case, the likeliest first.
        what: the noun for the error.
        preferred: columns that the table's own description declares to hold them.
        taken: a column that already has another meaning.
        named: the column that the user names with an option, or empty; None if there is no option.

    Raises:
        DataError: none is recognised; the message lists the columns.
    """
    lower = {simplify(name): name for name in reversed(columns) if name != taken}
    candidates = [lower[name] for name in known if name in lower]
    if named and simplify(named) not in lower:
        raise DataError(
            f"{table} has no column {named!r}",
            expected=f"one of {', '.join(map(repr, columns))}",
            remedy=f"Name one of these with --{what}-column",
        )
    if named:
        return lower[simplify(named)]
    declared = [name for name in candidates if name in preferred] or list(preferred)
    if declared or candidates:
        return (declared or candidates)[0]
    raise DataError(
        f"{table} has no column of {what}s, its columns are {', '.join(map(repr, columns)) or 'none'}",
        expected=f"a column named {', '.join(known[:6])} or similar" + OF_TEXTS * (what == "image"),
        remedy=f"Rename the column of {what}s to {known[0]!r}; the first line of a text file names them"
        if named is None
        else f"Rename the columns so, or name that of {what}s with --{what}-column",
    )


def simplify(name: str) -> str:
    """Normalise a column's name for comparison with known names."""
    return name.strip().lower().replace(" ", "_")


def content_of(cell: Any) -> Any:
    """Unwrap a cell of images: the bytes or the path of a Hugging Face image, else the cell itself."""
    if isinstance(cell, Mapping):
        cell = cell.get("bytes") if cell.get("bytes") is not None else cell.get("path")
    return bytes(cell) if isinstance(cell, bytearray) else cell


def image_of_cell(cell: Any, table: Path, *, is_bound: bool = False) -> Path | bytes | None:
    """Return the file that a cell names, beside the table, or the bytes in it; None if there is neither.

    Args:
        is_bound: whether files outside of the table's folder are none.
    """
    value = content_of(cell)
    if isinstance(value, bytes):
        return value
    if value is None or not str(value).strip():
        return None
    if not isinstance(value, str):
        raise DataError(
            f"{table} holds images as {type(value).__name__}",
            expected="paths of image files, or their bytes",
            remedy="Store the images as encoded files (PNG, JPEG) in the table or beside it",
        )
    paths = [table.parent / expand(form) for form in forms_of(value.strip().replace("\0", REPLACEMENT))]
    if is_bound:
        paths = [path for each in paths if lies_in(path := Path(os.path.normpath(each)), [table.parent])]
    return next((path for path in paths if path.exists()), paths[0] if paths else None)


def label_text(value: Any) -> str | None:
    """Return the label in a cell as text; None if there is none.

    Raises:
        DataError: it is neither text nor a number.
    """
    if value is None or (isinstance(value, float) and value != value):
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool | int | str | float):
        return str(value).strip() or None
    raise DataError(
        f"a label is {value!r}, of type {type(value).__name__}",
        expected="one class in each row, as text or a number",
        remedy="Write one label into each row; several labels for one sample are not supported",
    )


def class_names_in(features: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the class names by column from a Hugging Face description of features."""
    return {
        column: [str(name) for name in feature["names"]]
        for column, feature in features.items()
        if isinstance(feature, Mapping) and feature.get("_type") == "ClassLabel" and feature.get("names")
    }


def arrow_fields(schema: Any) -> dict[str, list[str]]:
    """Return the fields of each column of structures, or of lists of them."""
    import pyarrow.types

    fields = {}
    for column in schema:
        kind = column.type
        while pyarrow.types.is_list(kind) or pyarrow.types.is_large_list(kind):
            kind = kind.value_type
        if pyarrow.types.is_struct(kind):
            fields[column.name] = [inner.name for inner in kind]
    return fields


def arrow_columns(
    table: Any, wanted: Callable[[str, Any], bool], flattened: str = ""
) -> dict[str, Sequence[Any]]:
    """Return the columns of an Arrow table as plain values; arguments as in ``read_table``."""
    import pyarrow.types

    if flattened in table.column_names:
        column = table.column(flattened)
        if pyarrow.types.is_struct(column.type):
            parts = zip(column.type, column.flatten(), strict=True)
            return {inner.name: values.to_pylist() for inner, values in parts}
    return {
        name: table.column(name).to_pylist()
        for name in table.column_names
        if wanted(name, table.schema.field(name).type)
    }


def _read_parquet(path: Path, wanted: Callable[[str, Any], bool], flattened: str) -> Table:
    parquet = import_optional("pyarrow.parquet", f"reading {path} needs", "pyarrow", "data", DataError)
    open_file(path).close()  # else a pipe would be waited for
    file = parquet.ParquetFile(path)
    schema = file.schema_arrow
    names = [name for name in schema.names if name == flattened or wanted(name, schema.field(name).type)]
    content = file.read(columns=names)
    columns = arrow_columns(content, wanted, flattened)
    if not flattened:
        columns = dict.fromkeys(schema.names, ()) | columns
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
    except (KeyError, ValueError, TypeError):
        features = {}
    called = [f"{path.name}#{row}" for row in range(content.num_rows)]
    features = features if isinstance(features, Mapping) else {}
    return Table(path, columns, called, features, arrow_fields(schema))


def _read_json_lines(path: Path, prose: Prose | None, flattened: str) -> Table:
    lines = _strict_lines(path) if prose is None else read_lines(path)
    expected = Prose.json_line if prose is None else prose.json_line
    label = path.name.removesuffix(PACKED)
    rows: list[Mapping[str, Any]] = []
    names = []
    for number, row in json_objects(lines, path, expected=expected):
        clean = _without_surrogates(row) if "\\ud" in lines[number - 1].lower() else row
        inner = clean.get(flattened)
        rows.append(inner if isinstance(inner, Mapping) else clean)
        names.append(f"{label}:{number}")
    keys = dict.fromkeys(key for row in rows for key in row)
    columns = {key: [row.get(key) for row in rows] for key in keys}
    fields = {name: sorted({key for cell in cells for key in _keys(cell)}) for name, cells in columns.items()}
    return Table(path, columns, names, fields=fields)


def json_objects(
    lines: Iterable[str], path: Path, *, expected: str = Prose.json_line
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the number of each non-blank line, from 1, and the object on it.

    Raises:
        DataError: a line is not a JSON object; ``expected`` says what it must be.
    """
    for number, line in enumerate(lines, start=1):
        if not line or line.isspace():
            continue
        try:
            row = parse_json(line.rstrip("\r\n"))
            fault = "" if isinstance(row, dict) else f"is a JSON {type(row).__name__}"
        except json.JSONDecodeError as error:
            fault = f"is not JSON: {error.msg.removesuffix(' at')} at character {error.pos + 1}"
        except ValueError as error:  # a number of too many digits, too many brackets
            fault = f"is not JSON: {error}"
        if fault:
            raise DataError(
                f"line {number:,} of {path} {fault}",
                expected=expected,
                remedy="Correct this line, or remove it",
            )
        yield number, row


def _without_surrogates(value: Any) -> Any:
    r"""Replace lone surrogates, which JSON can write (``\ud83d``) and UTF-8 cannot."""
    if isinstance(value, str):
        return "".join(REPLACEMENT if "\ud800" <= letter <= "\udfff" else letter for letter in value)
    if isinstance(value, dict):
        return {key: _without_surrogates(inner) for key, inner in value.items()}
    return value


def _keys(value: Any) -> list[str]:
    if isinstance(value, Mapping):
        return [str(key) for key in value]
    if isinstance(value, list):
        return [str(key) for item in value if isinstance(item, Mapping) for key in item]
    return []


def _strict_lines(path: Path) -> list[str]:
    """Read lines with their ends; ``ValueError`` if a byte is not UTF-8."""
    content = read_file(path)
    check_encoding(content, f"{path}")
    return list(io.StringIO(content.decode("utf-8-sig"), newline=""))


def _read_delimited(path: Path, joins_rest: bool) -> Table:
    lines = _strict_lines(path)
    delimiter = max("\t,;|", key=next(iter(lines), "").count)
    spans = [span for span in _quoted_rows(lines, delimiter, path) if any(cell.strip() for cell in span[2])]
    names = name_columns([cells for _, _, cells in spans[:LOOKED_AT]])
    findings: list[Finding] = []
    if spans and names != [name.strip() for name in spans[0][2]]:
        message = f"the first line of {path.name} is data; the columns are read as {', '.join(names)}"
        findings.append(Finding("info", "no-header", message, "Write a line of column names above it"))
    else:
        spans = spans[1:]
    rows = []
    for begin, _, cells in spans:
        if len(cells) > len(names) and not joins_rest:
            told = f"line {begin:,} has {len(cells)} cells and the header {len(names)}"
            raise ValueError(told + ", divided by tabs" * (delimiter == "\t"))
        first, rest = cells[: len(names) - 1], cells[len(names) - 1 :]
        rows.append([cell.strip() for cell in (*first, delimiter.join(rest))])
    called = [f"{path.name}:{begin}" for begin, _, _ in spans]
    findings.extend(_find_swallowed(spans, delimiter, path))
    return Table(path, _to_columns(names, rows), called, findings=tuple(findings))


def _read_prose(path: Path, prose: Prose) -> Table:
    found = list(_prose_rows(read_lines(path), path, prose))
    header = [name.strip() for name in found[0][0]] if found else []
    if found and prose.are_columns(header):
        found = found[1:]
    elif max((len(row) for row, _ in found), default=2) < 2:
        raise DataError(
            f"{path} has one column alone",
            expected="the two sides of a pair in one row, divided by a tab in .tsv and by a comma in .csv",
            remedy="Write both sides into each row, or give two files, STEM.en and STEM.de",
        )
    else:
        header = list(prose.unnamed(path, [row for row, _ in found[:LOOKED_AT]]))
    label = path.name.removesuffix(PACKED)
    rows, names = [row for row, _ in found], [f"{label}:{number}" for _, number in found]
    return Table(path, _to_columns(header, rows), names, findings=_find_odd_rows(rows, names, label))


def _to_columns(names: Sequence[str], rows: Sequence[Sequence[str]]) -> dict[str, list[str]]:
    columns: dict[str, list[str]] = {}
    for place, name in enumerate(names):
        if name not in columns:
            columns[name] = [row[place] if place < len(row) else "" for row in rows]
    return columns


def _prose_rows(lines: list[str], path: Path, prose: Prose) -> Iterator[tuple[list[str], int]]:
    """Yield the cells of every row, and the number of the line on which it ends."""
    if path.name.lower().removesuffix(PACKED).endswith(".csv"):
        with_ends = [f"{line}\n" for line in lines]
        rows = _quoted_rows(with_ends, _prose_delimiter(lines, prose), path)
        yield from ((row, end) for _, end, row in rows if row)
    else:
        yield from ((line.split("\t"), number) for number, line in enumerate(lines, start=1))


def _quoted_rows(lines: Sequence[str], delimiter: str, path: Path) -> Iterator[tuple[int, int, list[str]]]:
    """Yield the numbers of the first and the last line of each row, from 1, and its cells.

    A quoted cell may hold line breaks. If one does and does not end with a quote, the quote is taken as never
    closed: the cell would hold all rows up to the next quote, or to the end.
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


def _prose_delimiter(lines: Sequence[str], prose: Prose) -> str:
    first = lines[:50]
    for delimiter in DELIMITERS:
        header = next(iter(csv.reader(first[:1], delimiter=delimiter)), [])
        if prose.are_columns([name.strip() for name in header]):
            return delimiter

    def agreement(delimiter: str) -> tuple[bool, int]:
        widths = Counter(len(row) for row in csv.reader(first, delimiter=delimiter) if row)
        width, number = widths.most_common(1)[0] if widths else (0, 0)
        return width > 1, number

    return max(DELIMITERS, key=agreement)


def _suffix(path: Path) -> str:
    return Path(path.name.removesuffix(PACKED)).suffix.lower()


def _find_swallowed(
    spans: Iterable[tuple[int, int, list[str]]], delimiter: str, path: Path
) -> tuple[Finding, ...]:
    """Report rows with a multi-line cell in which a later line looks like a row of its own."""
    suspects = [
        f"lines {begin:,} to {end:,}"
        for begin, end, row in spans
        if any(line.count(delimiter) >= len(row) - 1 > 0 for cell in row for line in cell.splitlines()[1:])
    ]
    message = f"of {path.name} with a cell that holds what looks like further rows"
    remedy = "Nothing, if the line breaks are meant; else close the quote at the end of the first line"
    return tuple(counted(suspects, "warning", "rows-in-a-cell", "row", message, remedy))


def _find_odd_rows(rows: Sequence[Sequence[str]], names: Sequence[str], label: str) -> tuple[Finding, ...]:
    usual = Counter(map(len, rows)).most_common(1)[0][0] if rows else 0
    odd = [name for name, row in zip(names, rows, strict=True) if len(row) != usual]
    message = f"{len(odd)} rows of {label} have another number of cells than the {usual} of most"
    remedy = "A missing cell is read as empty and a further one is not read; look at these rows"
    return tuple(about(odd, "warning", "odd-rows", message, remedy))


def _is_closed(lines: Sequence[str], delimiter: str) -> bool:
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
