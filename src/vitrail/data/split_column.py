"""A column of a table that says to which split each row belongs; a name that is no split's is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from vitrail.core.errors import DataError
from vitrail.data.contract import SPLIT_NAMES, SplitName

SPLIT_COLUMNS = ("split", "set", "subset", "partition")
REST: dict[str, SplitName] = {"restval": "train"}
"""COCO's validation images that are trained on (Karpathy and Fei-Fei 2015)."""


def rows_by_split(
    columns: Mapping[str, Sequence[Any]], called: Callable[[int], str]
) -> dict[SplitName, list[int]]:
    """Return the places of the rows of each split; none where no column tells.

    A column tells where its name is one of ``SPLIT_COLUMNS`` and any of its cells names a split: a ``set`` of
    other things divides nothing.

    Args:
        columns: of the table, by name.
        called: returns what to call the row at a place, for the error.

    Raises:
        DataError: the column names splits, and a cell of it names none.

    >>> rows_by_split({"image": ["a.png", "b.png"], "Split": ["Train", "dev"]}, str)
    {'train': [0], 'validation': [1]}
    """
    column = next((name for name in columns if name.strip().lower() in SPLIT_COLUMNS), None)
    if column is None:
        return {}
    cells = columns[column]
    if not any(_split_of(cell) for cell in cells):
        return {}
    parts: dict[SplitName, list[int]] = {}
    for row, cell in enumerate(cells):
        parts.setdefault(split_named(cell, called(row)), []).append(row)
    return parts


def split_named(cell: Any, called: str) -> SplitName:
    """Return the split that a row says it is of.

    Raises:
        DataError: it names no split; ``called`` is what the message calls the row.
    """
    split = _split_of(cell)
    if split is None:
        told = "" if cell is None else str(cell).strip()
        raise DataError(
            f"{called} belongs to a split named {told!r}" if told else f"{called} names no split",
            expected=f"one of {', '.join(sorted(SPLIT_NAMES))}",
            remedy="Correct the column of splits",
        )
    return split


def _split_of(cell: Any) -> SplitName | None:
    name = str(cell).strip().lower()
    return SPLIT_NAMES.get(name) or REST.get(name)
