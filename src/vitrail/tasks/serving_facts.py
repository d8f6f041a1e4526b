"""Facts about every served model."""

from __future__ import annotations

from typing import Any

from torch import nn

from vitrail.core.errors import ConfigError
from vitrail.interpret import has_attention


def common_facts(owner: Any) -> dict[str, Any]:
    """Return family, engine and precision of a predictor."""
    engine = getattr(owner, "engine", None)
    return {
        "family": getattr(getattr(in_torch(owner), "config", None), "family", None),
        "engine": getattr(engine, "name", "torch"),
        "precision": getattr(engine, "precision", "float32"),
    }


def can_explain(owner: Any) -> bool:
    """Return whether there is attention to show."""
    model = in_torch(owner)
    return model is not None and has_attention(model)


def in_torch(owner: Any) -> nn.Module | None:
    """Return the torch module of a predictor, needed for explanations; None for an exported model."""
    try:
        return owner.model
    except ConfigError:  # exported model
        return None
