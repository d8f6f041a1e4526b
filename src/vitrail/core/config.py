"""Typed settings: one frozen class each, readable from JSON and from ``--set a.b=value``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from vitrail.core.errors import ConfigError, did_you_mean


class Config(BaseModel):
    """The base of every settings class: frozen, keyword-only, an unknown field is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    def with_changes(self, changes: Mapping[str, Any]) -> Self:
        """Return a copy in which some fields, named by dotted paths, have new values.

        Args:
            changes: dotted path to value; a value may be text, which is converted to the field's type.

        Raises:
            ConfigError: a path names no field, or a value does not fit its field.
        """
        tree = self.model_dump(mode="json")
        for path, value in changes.items():
            _assign(tree, path, value)
        return self.from_tree(tree)

    @classmethod
    def from_tree(cls, tree: Mapping[str, Any]) -> Self:
        """Validate nested plain values, such as JSON text holds, into this class.

        Raises:
            ConfigError: a field is unknown, missing or of the wrong type; all faults are listed.
        """
        try:
            return cls.model_validate(tree)
        except ValidationError as error:
            raise _explain(error, cls.__name__) from None


def _read_size(value: Any) -> Any:
    """Take 64 for 64x64, and the text 64x48 for its two numbers; anything else is left to the validation."""
    if isinstance(value, int) and not isinstance(value, bool):
        return (value, value)
    if isinstance(value, str):
        return tuple(value.lower().split("x")) if "x" in value.lower() else (value, value)
    return value


ImageSize = Annotated[tuple[int, int], BeforeValidator(_read_size)]
"""Height and width in pixels; one number stands for both."""


def parse_assignments(texts: Iterable[str]) -> dict[str, Any]:
    """Turn ``a.b=value`` texts into dotted paths and values; a value is JSON where it can be, text else.

    Raises:
        ConfigError: a text has no ``=`` or no path before it.
    """
    changes: dict[str, Any] = {}
    for text in texts:
        path, equals, value = text.partition("=")
        if not equals or not path.strip():
            raise ConfigError(
                f"--set was given {text!r}",
                expected="a dotted name, an equals sign and a value, such as optim.learning_rate=0.001",
                remedy="Write the assignment without spaces, or quote it",
            )
        try:
            changes[path.strip()] = json.loads(value)
        except json.JSONDecodeError:
            changes[path.strip()] = value
    return changes


def _assign(tree: dict[str, Any], path: str, value: Any) -> None:
    parts = path.split(".")
    node: Any = tree
    for depth, part in enumerate(parts):
        if not isinstance(node, dict) or part not in node:
            known = list(node) if isinstance(node, dict) else []
            above = ".".join(parts[:depth]) or "the experiment"
            fields = f"a field of {above}: {', '.join(known)}"
            raise ConfigError(
                f"there is no setting {path!r}",
                expected=fields if known else f"{above} alone, it has no fields",
                remedy=did_you_mean(part, known) if known else "Leave out what follows the last dot",
            )
        if depth == len(parts) - 1:
            node[part] = value
        node = node[part]


def _explain(error: ValidationError, name: str) -> ConfigError:
    faults = []
    for fault in error.errors(include_url=False):
        place = ".".join(str(part) for part in fault["loc"]) or name
        text = f"{place}: {fault['msg'].removeprefix('Value error, ')}"
        # A rule over several fields names them itself; its input is all fields that there are.
        is_whole = isinstance(fault["input"], dict | BaseModel)
        faults.append(text if is_whole else f"{text} (given {fault['input']!r})")
    return ConfigError(
        f"the settings of {name} do not fit: {'; '.join(faults)}",
        expected="values of the documented types and ranges",
        remedy="Correct these fields; the config.json of a run holds every setting with its value",
    )
