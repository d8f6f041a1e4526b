"""Tables: CSV, TSV, JSON lines and parquet to rows with named columns; errors name the file and the line."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitrail.core.errors import DataError
from vitrail.data.dataset import ImageSplit, encode_labels, order_class_names
from vitrail.data.findings import Finding, number_of
from vitrail.data.formats import RawDataset
from vitrail.data.splits import SplitName, rows_by_split

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


def arrow_fields(schema: Any) -> dict[str, list[str]]:
    """Return the fields of each column of structures, or of lists of them."""
    import pyarrow.types

    fields = {}
    for column in schema:
        kind = column.type
        while pyarrow.types.is_list(kind) or pyarrow.types.is_large_list(kind):
            kind = kind.value_type
        if pyarrow.types.is_struct(kind):
            fields[column.name] = [field.name for field in kind]
    return fields


@contextmanager
def parquet_file(path: Path) -> Iterator[Any]:
    """Open a parquet file; what goes wrong with it while it is open is told as damage to it.

    Raises:
        DataError: pyarrow is not installed, or the file is damaged.
    """
    try:
        import pyarrow.parquet
    except ImportError:
        raise DataError(
            f"reading {path} needs the package pyarrow, which is not installed",
            expected="pyarrow beside vitrail",
            remedy="Install it with: pip install 'vitrail[data]'",
        ) from None
    try:
        yield pyarrow.parquet.ParquetFile(path)
    except (OSError, ValueError) as error:
        raise DataError(
            f"{path} cannot be read as a table: {' '.join(str(error).split())[:200]}",
            expected="a complete parquet file, text encoded as UTF-8",
            remedy="Write or download the file again",
        ) from None


def load_parquet(path: Path) -> tuple[Any, Any]:
    """Return a table and what its metadata says of its features.

    Raises:
        DataError: as ``parquet_file``.
    """
    with parquet_file(path) as file:
        table = file.read()
    try:
        features = json.loads((table.schema.metadata or {})[b"huggingface"])["info"]["features"]
    except (KeyError, ValueError, TypeError):
        features = {}
    return table, features


IMAGE_COLUMNS = (
    "image", "images", "img", "image_path", "img_path", "image_file", "file_name", "filename", "file",
    "filepath", "file_path", "path", "picture", "photo", "pixels",
)  # fmt: skip
LABEL_COLUMNS = (
    "label", "labels", "class", "class_name", "classname", "category", "target", "fine_label", "class_id",
    "label_id", "species", "breed", "tag", "y",
)  # fmt: skip
UNKNOWN_LABEL = -1  # what the hub writes beside an image without a label, where classes have names


@dataclass(frozen=True)
class Table:
    """The columns of one file, decoded no further than the file format does it."""

    path: Path
    """The file; image paths are relative to its folder."""
    columns: Mapping[str, Sequence[Any]]
    """Values by column name."""
    label_names: Mapping[str, Sequence[str]]
    """Class names by label column, where the file stores them."""
    findings: tuple[Finding, ...] = ()
    """What was noticed while reading."""


def tables_to_dataset(tables: Mapping[SplitName, Table]) -> RawDataset:
    """Join the tables of one or several splits into one data set.

    A single table may divide its rows by a column named split, set, subset or partition. Rows without an
    image or a label are left out and reported.

    Raises:
        DataError: a table has no recognised column, names no existing file, or has labels without a name; or
            a row is of no known split.
    """
    rows = {split: _Rows.of(table) for split, table in tables.items()}
    findings = [finding for part in rows.values() for finding in part.findings]
    if set(rows) == {"train"}:
        rows = rows["train"].divide(tables["train"])
    stored = next((part.names for part in rows.values() if part.names is not None), None)
    if stored is not None and len(set(stored)) == len(stored):
        class_names = tuple(stored)
        for part in rows.values():
            part.name_labels(class_names)
    else:
        class_names = order_class_names(text for part in rows.values() for text in part.labels)
    splits = {
        split: ImageSplit(part.images, encode_labels(part.labels, class_names), part.image_names)
        for split, part in rows.items()
    }
    return RawDataset(class_names=class_names, splits=splits, findings=tuple(findings))


def names_in_features(features: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the class names by column from a Hugging Face description of features."""
    return {
        column: [str(name) for name in feature["names"]]
        for column, feature in features.items()
        if isinstance(feature, Mapping) and feature.get("_type") == "ClassLabel" and feature.get("names")
    }


def names_in_metadata(metadata: Mapping[bytes, bytes] | None) -> dict[str, list[str]]:
    """Return the class names by column that ``datasets`` writes into a parquet file's metadata."""
    try:
        described = json.loads((metadata or {})[b"huggingface"])["info"]["features"]
    except (KeyError, ValueError, TypeError):
        return {}
    return names_in_features(described) if isinstance(described, Mapping) else {}


def find_column(
    columns: Sequence[str],
    known: Sequence[str],
    what: str,
    table: Path | str,
    *,
    preferred: Sequence[str] = (),
    taken: str | None = None,
) -> str:
    """Return the column that holds the images or the labels.

    Args:
        columns: all names of the table.
        known: recognised names in lower case, the likeliest first.
        what: the noun for the error.
        table: what to call the table in the error.
        preferred: columns that the table's own description declares to be what is sought.
        taken: a column that already has another meaning.

    Raises:
        DataError: none is recognised; the message lists the columns.
    """
    lower = {name.strip().lower().replace(" ", "_"): name for name in reversed(columns) if name != taken}
    candidates = [lower[name] for name in known if name in lower]
    declared = [name for name in candidates if name in preferred] or list(preferred)
    if declared or candidates:
        return (declared or candidates)[0]
    raise DataError(
        f"{table} has no column of {what}s, its columns are {', '.join(map(repr, columns)) or 'none'}",
        expected=f"a column named {', '.join(known[:6])} or similar",
        remedy=f"Rename the column of {what}s to {known[0]!r}",
    )


class _Rows:
    """Images and label texts of one table or of a part of it."""

    def __init__(
        self,
        images: Sequence[Path | bytes],
        labels: Sequence[str],
        image_names: Sequence[str],
        places: Sequence[int],
        names: Sequence[str] | None,
        findings: Sequence[Finding],
        path: Path,
    ) -> None:
        self.images, self.labels, self.image_names = list(images), list(labels), list(image_names)
        self.places, self.names, self.findings, self.path = list(places), names, list(findings), path

    @classmethod
    def of(cls, table: Table) -> _Rows:
        names = list(table.columns)
        image_column = find_column(names, IMAGE_COLUMNS, "image", table.path.name)
        label_column = find_column(
            names,
            LABEL_COLUMNS,
            "label",
            table.path.name,
            preferred=list(table.label_names),
            taken=image_column,
        )
        stored = table.label_names.get(label_column)
        images: list[Path | bytes] = []
        labels, image_names, places, dropped = [], [], [], []
        for index, (image, label) in enumerate(
            zip(table.columns[image_column], table.columns[label_column], strict=True)
        ):
            content = _image_content(image, table.path)
            text = None if stored and label == UNKNOWN_LABEL else _label_text(label)
            if content is None or text is None:
                dropped.append(f"{table.path.name}#{index}")
                continue
            places.append(index)
            images.append(content)
            labels.append(text)
            image_names.append(_image_name(image, table.path, index))
        paths = [image for image in images if isinstance(image, Path)]
        if paths and len(paths) == len(images) and not any(path.exists() for path in paths):
            raise DataError(
                f"{table.path} names {number_of(len(paths), 'image file')} and none of them exists, such as "
                f"{paths[0]}",
                expected=f"paths relative to the folder {table.path.parent}, or absolute ones",
                remedy=f"Correct the column {image_column!r}, or move the table",
            )
        findings = list(table.findings)
        if dropped:
            findings.append(
                Finding(
                    "warning",
                    "incomplete-rows",
                    f"{number_of(len(dropped), 'row')} of {table.path.name} without an image or a label",
                    "Left out; complete or remove them",
                    tuple(dropped),
                )
            )
        return cls(
            images,
            labels,
            _made_unique(image_names),
            places,
            stored,
            findings,
            table.path,
        )

    def divide(self, table: Table) -> dict[SplitName, _Rows]:
        """Divide by the column of splits of the table, if there is one and it names a training split."""
        parts = rows_by_split(table.columns, lambda row: f"row {row} of {self.path}")
        if "train" not in parts:
            return {"train": self}
        index_of = {place: index for index, place in enumerate(self.places)}
        return {
            split: self._take([index_of[row] for row in rows if row in index_of])
            for split, rows in parts.items()
        }

    def name_labels(self, class_names: Sequence[str]) -> None:
        """Replace numbers by the names that the file stores."""
        known = set(class_names)
        total = number_of(len(known), "class", "classes")
        named = []
        for text in self.labels:
            is_index = text.isdigit() and int(text) < len(class_names)
            if not is_index and text not in known:
                raise DataError(
                    f"{self.path} has the label {text!r} but names {total}",
                    expected=f"labels from 0 to {len(class_names) - 1}",
                    remedy="Correct the labels, or the class names stored in the file",
                )
            named.append(class_names[int(text)] if is_index else text)
        self.labels = named

    def _take(self, indices: Sequence[int]) -> _Rows:
        return _Rows(
            [self.images[index] for index in indices],
            [self.labels[index] for index in indices],
            [self.image_names[index] for index in indices],
            [self.places[index] for index in indices],
            self.names,
            (),
            self.path,
        )


def _image_content(value: Any, table: Path) -> Path | bytes | None:
    if isinstance(value, Mapping):  # Hugging Face: bytes, or the path of a file
        value = value.get("bytes") if value.get("bytes") is not None else value.get("path")
    if isinstance(value, bytes | bytearray):
        return bytes(value)
    if value is None or not str(value).strip():
        return None
    if not isinstance(value, str):
        raise DataError(
            f"{table} holds images as {type(value).__name__}",
            expected="paths of image files, or their bytes",
            remedy="Store the images as encoded files (PNG, JPEG) in the table or beside it",
        )
    return table.parent / Path(value.strip()).expanduser()


def _image_name(value: Any, table: Path, index: int) -> str:
    if isinstance(value, str):
        return value.strip()
    return f"{table.name}#{index}"


def _label_text(value: Any) -> str | None:
    if value is None or (isinstance(value, float) and value != value):
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool | int | str | float):
        return str(value).strip() or None
    raise DataError(
        f"a label is {value!r}, of type {type(value).__name__}",
        expected="one class for each image, as text or a number",
        remedy="Write one label into each row; several labels for one image are not supported",
    )


def _made_unique(names: list[str]) -> list[str]:
    """Number the later ones of equal names, which rows that repeat a file have."""
    seen: dict[str, int] = {}
    unique = []
    for name in names:
        count = seen[name] = seen.get(name, 0) + 1
        unique.append(name if count == 1 else f"{name} ({count})")
    return unique
