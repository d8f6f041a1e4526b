"""Texts of everything that is reported of a detection data set: the table ``findings.toml``."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from vitrail.data.findings import Finding, number_of

TEXTS = tomllib.loads(Path(__file__).with_name("findings.toml").read_text(encoding="utf-8"))


def finding(check: str, items: Iterable[str] = (), *, count: int | None = None, **values: Any) -> Finding:
    """Return a finding with the texts of its check.

    Args:
        items: names of what is affected.
        count: how many are affected, if not all are named.
        values: what the texts leave open.
    """
    names, texts = tuple(items), TEXTS[check]
    number = len(names) if count is None else count
    lead = f"{number_of(number, texts['noun'])} " if "noun" in texts else ""
    message, remedy = (texts[part].format(count=number, **values) for part in ("message", "remedy"))
    return Finding(texts["severity"], check, lead + message, remedy, names, number)


def listed(check: str, items: Iterable[str], **values: Any) -> Iterator[Finding]:
    """Yield a finding about these items, if there are any."""
    if names := tuple(items):
        yield finding(check, names, **values)
