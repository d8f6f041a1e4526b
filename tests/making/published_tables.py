"""Key tables of published weights for tests: those of one source and family."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from vitrail.models import MODELS
from vitrail.models.weights.conversion import SOURCES
from vitrail.models.weights.table import Entry


def key_table(source: str, family: str) -> Callable[[Any], Iterable[Entry]]:
    return SOURCES[source].tables[family]


def published_names(source: str, *families: str) -> dict[str, str]:
    """Return the published architectures of some families, and ours."""
    names = SOURCES[source].names
    return {theirs: ours for theirs, ours in names.items() if MODELS[ours].family in families}
