"""Numbers of papers' tables: quoted, never computed."""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path
from typing import NamedTuple


class Published(NamedTuple):
    """One number of a table."""

    source: str
    """Authors, year and table."""
    model: str
    trained_on: str
    """Data that an image model was pre-trained on."""
    quantity: str
    """The name of a benchmark, whose score is in percent, or another quantity with its unit."""
    value: float


@cache
def published_results() -> tuple[Published, ...]:
    """Return every number of ``published.csv``, table by table."""
    with Path(__file__).with_name("published.csv").open(encoding="utf-8", newline="") as lines:
        _, *rows = csv.reader(lines)
    return tuple(Published._make((*texts, float(value))) for *texts, value in rows)
