"""Named experiments: a recipe says what differs from the automatic choices.

Every public function of a file in this folder is a recipe; its name, with dashes, is what ``--recipe``
takes. It returns dotted settings and their values. Its docstring is the document of the experiment: the
command, the hardware, the time and the score to expect.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from vitrail.registry import Registry

Recipe = Callable[[], dict[str, Any]]


def collect_recipes(module: ModuleType) -> Mapping[str, Recipe]:
    """Return the recipes of one file: the public functions that it defines."""
    functions = inspect.getmembers(module, inspect.isfunction)
    return {
        name.replace("_", "-"): function
        for name, function in functions
        if not name.startswith("_") and function.__module__ == module.__name__
    }


RECIPES: Registry[Recipe] = Registry("recipe", "vitrail.recipes", collect_recipes)
