"""A table that is called captions and whose columns are not known, so that no format recognises it."""

from __future__ import annotations

import csv
import re
from pathlib import Path

from vitrail.core.errors import DataError
from vitrail.data.tables import column_names
from vitrail.tasks.captioning.columns import are_captions
from vitrail.tasks.captioning.formats.tables import SUFFIXES

NAMED = re.compile(r"(^|[^a-z])captions?([^a-z]|$)", re.I)


def find_unread(path: Path) -> tuple[Path, list[str]] | None:
    """Return a table of a folder, or the file itself, that is called captions, and its unknown columns.

    None where there is none; only names and first rows are read.
    """
    try:
        for file in [path] if path.is_file() else sorted(path.glob("*")):
            if not NAMED.search(file.stem) or file.suffix.lower() not in SUFFIXES:
                continue
            columns = column_names(file)
            if len(columns) > 1 and not are_captions(columns):
                return file, columns
    except (OSError, ValueError, ImportError, csv.Error, RecursionError):
        return None
    return None


def unknown_columns(file: Path, columns: list[str]) -> DataError:
    """Return the error of such a table."""
    return DataError(
        f"{file} has the columns {', '.join(map(repr, columns))}",
        expected="a column image (or file_name, path, ...) and a column caption (or captions, text, ...)",
        remedy="Rename the columns, or write image,caption as the first line where it has no names",
    )
