"""Parquet files with nested columns: their fields, their rows, and what their metadata says of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vitrail.core.errors import DataError


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
