"""Parquet: a column for each language, or one named ``translation`` that holds them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vitrail.data.tables import parquet_file
from vitrail.data.text.languages import Languages
from vitrail.tasks.translation.columns import STRUCT_COLUMN, PairTable, are_pairs, read_tables, tables_of
from vitrail.tasks.translation.formats.contract import PairFormat, RawPairs

SUFFIXES = (".parquet",)


def recognises(path: Path, wanted: Languages | None) -> bool:
    """Accept a file, or a folder with ``train.parquet`` or the like, whose columns are those of pairs."""
    for files in tables_of(path, SUFFIXES).values():
        try:
            import pyarrow.parquet

            return are_pairs(column_names(pyarrow.parquet.read_schema(files[0])), wanted)
        except (ImportError, OSError, ValueError):  # those of pyarrow are the latter two
            return False
    return False


def read(path: Path, wanted: Languages | None) -> RawPairs:
    """Read one file, or those of the splits in a folder.

    Raises:
        DataError: pyarrow is not installed, or a file is damaged, has no recognised columns or no row.
    """
    return read_tables(path, wanted, SUFFIXES, _read_table)


def column_names(schema: Any) -> list[str]:
    """Return the names of an Arrow schema; fields of a struct ``translation`` stand for the struct."""
    import pyarrow.types

    names = list(schema.names)
    if STRUCT_COLUMN in names and pyarrow.types.is_struct(schema.field(STRUCT_COLUMN).type):
        return [field.name for field in schema.field(STRUCT_COLUMN).type]
    return names


def to_columns(table: Any) -> dict[str, list[Any]]:
    """Return the columns of an Arrow table that may hold pairs, as plain values."""
    import pyarrow.types

    if STRUCT_COLUMN in table.column_names:
        column = table.column(STRUCT_COLUMN)
        if pyarrow.types.is_struct(column.type):
            fields = zip(column.type, column.flatten(), strict=True)
            return {field.name: values.to_pylist() for field, values in fields}
    return {
        name: table.column(name).to_pylist()
        for name in table.column_names
        if not pyarrow.types.is_nested(table.schema.field(name).type)
        and not pyarrow.types.is_binary(table.schema.field(name).type)
    }


def _read_table(path: Path) -> PairTable:
    with parquet_file(path) as file:
        columns = to_columns(file.read())
    number = len(next(iter(columns.values()), []))
    return PairTable(columns, [f"{path.name}#{index}" for index in range(number)])


FORMAT = PairFormat(
    name="parquet of pairs",
    layout="a .parquet file with columns en and de, source and target, or translation, or a folder with "
    "train.parquet (test.parquet) or parts of them",
    recognises=recognises,
    read=read,
    rank=40,
    suffixes=SUFFIXES,
)
