"""Columns of tables with captions: which one holds images, which ones captions, and what their cells mean."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from vitrail.data.tables import IMAGE_COLUMNS, LABEL_COLUMNS, find_column

CAPTION_COLUMNS = (
    "caption", "captions", "text", "texts", "sentence", "sentences", "sentences_raw", "comment", "comments",
    "description", "descriptions", "answer", "alt_text", "title", "raw",
)  # fmt: skip
NUMBERED = re.compile(r"^(caption|sentence|text|comment)s?_?\d+$")
MORE_IMAGES = ("image_name", "image_id", "img_name", "image_filename")
KNOWN_IMAGES = (*IMAGE_COLUMNS, *MORE_IMAGES)
Columns = Mapping[str, Sequence[Any]]


def are_captions(columns: Iterable[str]) -> bool:
    """Tell by the names of its columns whether a table holds captions; labels and boxes go first."""
    lower = {simplify(name) for name in columns}
    has_images = bool(lower.intersection(KNOWN_IMAGES))
    return (
        has_images and bool(_caption_columns(lower)) and not lower.intersection((*LABEL_COLUMNS, "objects"))
    )


def captions_of(columns: Columns, names: Sequence[str]) -> list[list[Any]]:
    """Return the captions of each row, of one column or several."""
    rows: list[list[Any]] = []
    for cells in zip(*(columns[name] for name in names), strict=True):
        found: list[Any] = []
        for cell in cells:
            found += _texts(cell)
        rows.append(found)
    return rows


def caption_columns(columns: Sequence[str], table: Path | str) -> list[str]:
    """Return the columns of captions: the likeliest one, or all that are numbered.

    Raises:
        DataError: none is recognised; the message lists the columns.
    """
    by_name = {simplify(name): name for name in reversed(columns)}
    found = _caption_columns(by_name)
    if not found:
        find_column(list(columns), CAPTION_COLUMNS, "caption", table)  # which says what there is
    return [by_name[name] for name in found]


def simplify(name: str) -> str:
    """Return a column's name in the form in which known names are compared."""
    return name.strip().lower().replace(" ", "_")


def _caption_columns(lower: Iterable[str]) -> list[str]:
    names = list(lower)
    plain = [name for name in CAPTION_COLUMNS if name in names]
    return plain[:1] or sorted(
        (name for name in names if NUMBERED.match(name)),
        key=lambda name: int("".join(filter(str.isdigit, name))),
    )


def _texts(cell: Any) -> list[Any]:
    """Return the captions of a cell: a text, a list, a list in JSON, or objects with a field ``raw``."""
    if isinstance(cell, str) and cell.lstrip().startswith("["):
        try:
            listed = json.loads(cell)
        except ValueError:
            return [cell]
        return _texts(listed) if isinstance(listed, list) else [cell]
    if isinstance(cell, Mapping):
        told = next((cell[key] for key in ("raw", "caption", "text") if key in cell), "")
        return _texts(told)
    if isinstance(cell, list | tuple):
        return [text for part in cell for text in _texts(part)]
    return [cell]
