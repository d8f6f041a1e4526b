"""What came out of measuring claims, as it is stored: texts, verdicts and tables of plain values."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from pydantic import Field

from vitrail.core.config import Config
from vitrail.lab.contract import Row, Verdict

Cell = bool | int | float | str | None


class Table(Config):
    """Measured rows of one kind."""

    caption: str
    """What a row is."""
    columns: dict[str, str]
    """The name of each column, and what it holds."""
    rows: tuple[tuple[Cell, ...], ...]
    """Values in the order of the columns; None where a number was infinite or none."""


class ClaimResult(Config):
    """A claim with what was measured of it."""

    name: str
    """Of the claim."""
    statement: str
    """What is claimed."""
    source: str
    """Where."""
    published: str
    """What stands there."""
    criterion: str
    """What decides."""
    measured: str
    """The numbers that decided."""
    verdict: Verdict
    """The decision."""
    settings: dict[str, Any]
    """Of the measurement."""
    changed_from: dict[str, Any] = Field(default={})
    """The default of each setting that had another value: such a verdict says less of the claim."""
    seed: int
    """Of everything random."""
    seconds: float
    """How long the measurement took."""
    processor_s: float
    """Processor time of all its threads."""
    environment: dict[str, Any]
    """Versions, processor, threads, command line."""
    picture: str
    """File of the picture, in the same folder."""
    tables: tuple[Table, ...]
    """All that was measured."""

    @property
    def decision(self) -> str:
        """The verdict, with the settings that were changed."""
        changed = ", ".join(map(self.write_setting, self.changed_from))
        return f"{self.verdict}, with {changed}" if changed else self.verdict

    def write_setting(self, name: str) -> str:
        """Write a setting as ``--set`` takes it, with its default where that is another."""
        text = write_assignment(name, self.settings[name])
        return f"{text} (default {_write(self.changed_from[name])})" if name in self.changed_from else text


class LabResults(Config):
    """Everything that ``results.json`` holds."""

    claims: tuple[ClaimResult, ...] = Field(default=())
    """One for each claim that was measured, by name."""

    def with_result(self, result: ClaimResult) -> LabResults:
        """Return the results with one more, which takes the place of an earlier one of that claim."""
        others = [claim for claim in self.claims if claim.name != result.name]
        return LabResults(claims=tuple(sorted([*others, result], key=lambda claim: claim.name)))


def tabulate(rows: Sequence[Row]) -> tuple[Table, ...]:
    """Sort rows into one table for each kind, in the order in which the kinds appear."""
    kinds = list(dict.fromkeys(type(row) for row in rows))
    return tuple(_tabulate_kind(kind, [row for row in rows if type(row) is kind]) for kind in kinds)


def summary_table(results: Sequence[ClaimResult]) -> tuple[list[str], list[list[str]]]:
    """Return the header and the rows of claim, source, published, measured and verdict."""
    header = ["claim", "source", "published", "measured", "verdict"]
    return header, [
        [f"{each.name}: {each.statement}", each.source, each.published, each.measured, each.decision]
        for each in results
    ]


def write_assignment(name: str, value: Any) -> str:
    """Write a setting as ``--set`` takes it.

    >>> write_assignment("sizes", [3, 5]), write_assignment("images", None)
    ('sizes=[3, 5]', 'images=null')
    """
    return f"{name}={_write(value)}"


def format_cell(value: Cell) -> str:
    """Write a value of a table for a reader.

    >>> [format_cell(value) for value in (True, 2048, 0.123456, None, "pre")]
    ['yes', '2,048', '0.1235', '-', 'pre']
    """
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.4g}" if isinstance(value, float) else value


def _tabulate_kind(kind: type[Row], rows: Sequence[Row]) -> Table:
    columns = {name: field.description or "" for name, field in kind.model_fields.items()}
    trees = [row.model_dump(mode="json") for row in rows]
    return Table(
        caption=" ".join((kind.__doc__ or "").split()),
        columns={name: " ".join(text.replace("``", "").split()) for name, text in columns.items()},
        rows=tuple(tuple(_storable(tree[name]) for name in columns) for tree in trees),
    )


def _write(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _storable(value: Cell) -> Cell:
    """Return what JSON can hold: it has no word for infinity."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
