"""A setting that was chosen for the user, and why."""

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


def fields_of_model(asked: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return those settings that the user made of the model, its name left out, without their section's name.

    >>> fields_of_model({"model.name": "vit_nano", "model.depth": 3, "train.steps": 9})
    {'depth': 3}
    """
    return {
        path.removeprefix("model."): value
        for path, value in (asked or {}).items()
        if path.startswith("model.") and path != "model.name"
    }
