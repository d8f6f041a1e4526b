"""Typed settings: one frozen class each, readable from JSON and from ``--set a.b=value``."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Mapping
from functools import reduce
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, ValidationError

from vitrail.core.errors import CheckpointError, ConfigError, VitrailError, did_you_mean
from vitrail.core.files import parse_json

MOST_PIXELS = 2**24  # of a model's input, 4096x4096


class RuleError(ConfigError):
    """Fields that are right alone do not fit together."""


class Config(BaseModel):
    """Base of every settings class: frozen, keyword-only, unknown fields are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)
    section: ClassVar[tuple[str, ...]] = ()
    """Where the fields stand among all settings, for messages."""

    def with_changes(self, changes: Mapping[str, Any]) -> Self:
        """Return a copy with other values, by dotted path; text is converted to the field's type.

        Raises:
            ConfigError: a path names no field, or a value does not fit its field.
        """
        tree = self.model_dump(mode="json")
        for path, value in changes.items():
            _assign(tree, path, value)
        changed = self.from_tree(tree)
        values = changed.model_dump()
        for path in changes:
            value = reduce(lambda node, part: node[part], path.split("."), values)
            if isinstance(value, float) and not math.isfinite(value):
                raise ConfigError(
                    f"{path} must be a finite number, not {value}",
                    expected="a number, such as 0.001",
                    remedy="Correct it, or leave it out",
                )
        return changed

    def only_given(self, changes: Mapping[str, Any]) -> Self:
        """Return ``with_changes`` with exactly the changed fields marked as given.

        >>> class Training(Config):
        ...     steps: int = 1
        ...     seed: int = 0
        >>> asked = Training(steps=9).only_given({"seed": 7})
        >>> asked.seed, asked.is_given("seed"), asked.is_given("steps")
        (7, True, False)
        """
        changed = self.with_changes(changes)
        changed._keep_given(changes)
        return changed

    def is_given(self, field: str) -> bool:
        """Whether a field was set, not left to its default."""
        assert field in type(self).model_fields, field
        return field in self.model_fields_set

    def with_given(self, asked: Self) -> Self:
        """Return a copy that takes over the given fields of another; errors are those of ``with_changes``."""
        given = asked.model_dump(mode="json", exclude_unset=True)
        return self.from_tree(_merge(self.model_dump(mode="json"), given))

    def _keep_given(self, paths: Iterable[str]) -> None:
        """Mark only the fields of some dotted paths as given."""
        parts = [path.partition(".") for path in paths]
        for name, value in self:
            inner = [rest for first, _, rest in parts if first == name]
            if isinstance(value, Config) and "" not in inner:  # nothing after it gives the whole section
                value._keep_given(inner)
        self.model_fields_set.intersection_update(first for first, _, _ in parts)

    @classmethod
    def from_tree(cls, tree: Mapping[str, Any]) -> Self:
        """Validate nested plain values, such as parsed JSON.

        Raises:
            ConfigError: a field is unknown, missing or of the wrong type; all faults are listed.
        """
        try:
            return cls.model_validate(tree)
        except ValidationError as error:
            raise _explain(error, cls) from None

    @classmethod
    def from_file(
        cls,
        path: object,
        tree: Mapping[str, Any],
        *,
        remedy: str,
        expected: str = "the fields that were written",
        error: type[VitrailError] = CheckpointError,
    ) -> Self:
        """Validate what a file of ours holds, as ``from_tree``; an error names the file."""
        try:
            return cls.from_tree(tree)
        except ConfigError as fault:
            raise error(f"{path} cannot be used: {fault.given}", expected=expected, remedy=remedy) from None


def _read_size(value: Any) -> Any:
    """Turn 64 into 64x64, and the text 64x48 into two numbers; validation handles the rest."""
    if isinstance(value, int) and not isinstance(value, bool):
        return (value, value)
    if isinstance(value, str):
        return tuple(value.lower().split("x")) if "x" in value.lower() else (value, value)
    return value


def _check_pixels(size: tuple[int, int]) -> tuple[int, int]:
    if size[0] * size[1] > MOST_PIXELS:
        raise ValueError(f"{size[0]}x{size[1]} is more than {MOST_PIXELS:,} pixels")
    return size


ImageSize = Annotated[tuple[int, int], BeforeValidator(_read_size), AfterValidator(_check_pixels)]
"""Height and width in pixels; one number stands for both."""


def _check_plain(name: str) -> str:
    if name in ("", ".", "..") or set(name) & set("/\\:\x00"):
        raise ValueError(f"{name!r} is no name of a file in the same folder")
    return name


PlainName = Annotated[str, AfterValidator(_check_plain)]
"""Of a file beside the one that names it: never a path, which could lead out of the folder."""


def check_place(value: Any) -> Any:
    """Return a path or a name; raise ``ConfigError`` if it is neither by its type."""
    if not isinstance(value, str | os.PathLike):
        raise ConfigError(
            f"{value!r:.60} is of the type {type(value).__name__}",
            expected="a path or a name, as text or Path",
            remedy="Give one; that of a run from vitrail.train is run.folder",
        )
    return value


Place = Annotated[str | Path, BeforeValidator(check_place)]
"""Of a file, a folder, or something known by name."""


def parse_assignments(texts: Iterable[str]) -> dict[str, Any]:
    """Turn ``a.b=value`` texts into dotted paths and values; a value is JSON if it parses, else text.

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
            changes[path.strip()] = parse_json(value)
        except ValueError:
            changes[path.strip()] = value
    return changes


def name_setting(name: str) -> str | None:
    """Return a sentence with our name of a setting that other libraries call so; None if there is none."""
    name = name.strip("-").replace("-", "_")
    if name in ("epoch", "epochs", "num_epochs"):
        return (
            "Give --budget TIME, or --set train.steps=COUNT; an epoch is the images divided by the batch size"
        )
    if name in ("device", "gpu", "gpus"):
        return "Leave it out: a GPU is used where there is one, unless CUDA_VISIBLE_DEVICES is empty"
    return f"Write --set {_ELSEWHERE[name]}=VALUE" if name in _ELSEWHERE else None


_ELSEWHERE = {
    **dict.fromkeys(("lr", "learning_rate"), "optim.learning_rate"),
    **dict.fromkeys(("bs", "batch_size"), "train.batch_size"),
    **dict.fromkeys(("size", "img_size", "image_size"), "model.image_size"),
    **dict.fromkeys(("wd", "weight_decay"), "optim.weight_decay"),
    **dict.fromkeys(("steps", "max_steps"), "train.steps"),
    **dict.fromkeys(("workers", "num_workers"), "train.num_workers"),
    "optimizer": "optim.name",
}


def _assign(tree: dict[str, Any], path: str, value: Any) -> None:
    parts = path.split(".")
    node: Any = tree
    for depth, part in enumerate(parts):
        if not isinstance(node, dict) or part not in node:
            known = list(node) if isinstance(node, dict) else []
            above = ".".join(parts[:depth]) or "the experiment"
            fields = f"a field of {above}: {', '.join(known)}"
            remedy = did_you_mean(part, known) if known else "Leave out what follows the last dot"
            raise ConfigError(
                f"there is no setting {path!r}",
                expected=fields if known else f"{above} alone, it has no fields",
                remedy=name_setting(parts[-1]) or remedy,
            )
        if depth == len(parts) - 1:
            node[part] = value
        node = node[part]


def _merge(tree: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Change some entries of nested dictionaries, in place."""
    for name, value in changes.items():
        is_section = isinstance(value, dict) and isinstance(tree.get(name), dict)
        tree[name] = _merge(tree[name], value) if is_section else value
    return tree


def _explain(error: ValidationError, config: type[Config]) -> ConfigError:
    faults, is_rule = [], False
    for fault in error.errors(include_url=False):
        place = ".".join(map(str, [*config.section, *fault["loc"]])) or config.__name__
        cause = fault.get("ctx", {}).get("error")
        if isinstance(cause, ConfigError):
            given = cause.given if cause.given.startswith(place) else f"{place}: {cause.given}"
            return ConfigError(given, expected=cause.expected, remedy=cause.remedy)
        # A rule over several fields names them itself; its input would be all fields.
        is_whole = isinstance(fault["input"], dict | BaseModel)
        given = "" if is_whole else f", not {fault['input']!r}"
        message = re.sub(r", (unable to|got a) .*", "", fault["msg"]).replace("valid integer", "whole number")
        for theirs, ours in _MESSAGES.items():
            if message.startswith(theirs):
                text = f"{place} {message.replace(theirs, ours).replace(' valid ', ' ')}{given}"
                break
        else:
            is_rule = is_whole and not fault["loc"]
            text = message.removeprefix("Value error, ")
            text = text if is_rule else f"{place}: {text}{given}"
        faults.append(text)
    return (RuleError if is_rule else ConfigError)(
        "; ".join(faults),
        expected="values of the documented types and ranges",
        remedy="Correct these fields; the config.json of a run holds every setting with its value",
    )


_MESSAGES = {
    "Input should": "must",
    "Field required": "is missing",
    "Extra inputs are not permitted": "is not a setting",
}
"""How ours begin that pydantic begins so."""
