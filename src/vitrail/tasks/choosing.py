"""Automatic choices shared by all tasks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from vitrail.core.errors import ConfigError
from vitrail.models.checkpoint import LoadedModel

CACHE_SHARE = 0.3  # of the free memory, for decoded images


class Choice(NamedTuple):
    """One automatic choice."""

    setting: str
    """Dotted path in the experiment."""
    value: str
    reason: str


def fields_of_model(model: Mapping[str, Any]) -> dict[str, Any]:
    """Return a model's settings without its name.

    >>> fields_of_model({"name": "vit_nano", "depth": 3})
    {'depth': 3}
    """
    return {field: value for field, value in model.items() if field != "name"}


def name_of_weights(pretrained: LoadedModel, asked: str | None) -> str:
    """Return the name of the pretrained model.

    Raises:
        ConfigError: another model was asked for.
    """
    name = str(pretrained.model_settings["name"])
    if asked is not None and asked != name:
        raise ConfigError(
            f"the model {asked!r} was asked for, and weights of {name!r}",
            expected="weights of the same model",
            remedy="Leave out --model, it follows from the weights",
        )
    return name


def precision_reason(precision: str) -> str:
    """Return the reason for a precision."""
    if precision == "bfloat16":
        return "this hardware multiplies bfloat16 at twice the rate of float32"
    return "this hardware has no fast bfloat16"
