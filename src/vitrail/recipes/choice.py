"""A setting that was chosen for the user, and why."""

from __future__ import annotations

from typing import NamedTuple


class Choice(NamedTuple):
    """One automatic choice."""

    setting: str
    """Dotted path in the experiment."""
    value: str
    """What was chosen, as text."""
    reason: str
    """Why, in a few words."""
