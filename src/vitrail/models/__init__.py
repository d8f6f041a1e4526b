"""Named models: every file of this folder is one family, and its ``VARIANTS`` are registered
automatically."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

from vitrail.core.errors import ConfigError, did_you_mean
from vitrail.core.registry import Registry
from vitrail.models.contract import ModelConfig

if TYPE_CHECKING:
    from torch import nn


def _variants(module: ModuleType) -> Mapping[str, ModelConfig]:
    variants: Mapping[str, ModelConfig] = getattr(module, "VARIANTS", {})
    return {name: config.model_copy(update={"name": name}) for name, config in variants.items()}


def _published() -> Mapping[str, str]:
    from vitrail.models.weights.conversion import SOURCES

    return {theirs: ours for source in SOURCES.values() for theirs, ours in source.names.items()}


MODELS: Registry[ModelConfig] = Registry("model", __name__, _variants, others=_published)


def list_models() -> list[str]:
    """Return the sorted names of all models."""
    return sorted(MODELS)


def build(name: str, **changes: Any) -> nn.Module:
    """Build a model by name, with fresh weights and some settings changed.

    Raises:
        ConfigError: unknown name, unknown setting, or a value that does not fit.

    Example:
        >>> import torch
        >>> model = build("vit_nano", num_classes=3)
        >>> model(torch.zeros(1, 3, 32, 32)).shape
        torch.Size([1, 3])
    """
    return configure(name, **changes).build()


def config_from_settings(settings: Mapping[str, Any]) -> ModelConfig:
    """Return a model's config from stored settings, as ``model_settings`` returns them.

    Raises:
        ConfigError: as ``build``, or the settings hold no name.
    """
    if "name" not in settings:
        raise ConfigError(
            f"the model's settings hold no name, only {sorted(settings)}",
            expected="the field 'name' with the name of a model",
            remedy="Add it; vitrail models lists the names",
        )
    changes = {field: value for field, value in settings.items() if field != "name"}
    return configure(settings["name"], **changes)


def model_settings(name: str, **changes: Any) -> dict[str, Any]:
    """Return a model's name and every field of its settings, with changes, as plain JSON values.

    Raises:
        ConfigError: as ``build``.
    """
    return configure(name, **changes).model_dump(mode="json")


def configure(name: str, **changes: Any) -> ModelConfig:
    """Return the config of a model, with changes.

    Raises:
        ConfigError: as ``build``.
    """
    config = MODELS[name]
    known = [field for field in type(config).model_fields if field != "name"]
    for field in changes:
        if field.partition(".")[0] not in known:
            raise ConfigError(
                f"the model {name!r} has no setting {field!r}",
                expected=f"one of {', '.join(known)}",
                remedy=did_you_mean(field, known),
            )
    return config.with_changes(changes)
