"""What the automatic choices of all tasks share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Choice(NamedTuple):
    """One automatic choice."""

    setting: str
    """Dotted path in the experiment."""
    value: str
    """What was chosen, as text."""
    reason: str
    """Why, in a few words."""


def fields_of_model(model: Mapping[str, Any]) -> dict[str, Any]:
    """Return a model's settings without its name.

    >>> fields_of_model({"name": "vit_nano", "depth": 3})
    {'depth': 3}
    """
    return {field: value for field, value in model.items() if field != "name"}
