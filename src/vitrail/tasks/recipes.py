"""Named experiments: a recipe says what differs from the automatic choices.

A recipe is a function that returns dotted settings and their values; its docstring documents the experiment:
command, hardware, time and expected score. The file ``recipes.py`` of a task lists them in ``RECIPES``, by
the names that ``--recipe`` takes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from vitrail.core.registry import Registry

Recipe = Callable[[], dict[str, Any]]


def _collect(module: ModuleType) -> Mapping[str, Recipe]:
    table: Mapping[str, Recipe] = getattr(module, "RECIPES", {})
    return table


RECIPES: Registry[Recipe] = Registry("recipe", "vitrail.tasks", _collect, module="recipes")
