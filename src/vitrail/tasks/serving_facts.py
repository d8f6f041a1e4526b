"""What is told of every model that is served."""

from __future__ import annotations

from typing import Any

from torch import nn

from vitrail.core.errors import ConfigError
from vitrail.interpret import has_attention


def common_facts(owner: Any) -> dict[str, Any]:
    """Return family, engine and precision of what a predictor, detector or translator holds."""
    engine = getattr(owner, "engine", None)
    return {
        "family": getattr(getattr(in_torch(owner), "config", None), "family", None),
        "engine": getattr(engine, "name", "torch"),
        "precision": getattr(engine, "precision", "float32"),
    }


def can_explain(owner: Any) -> bool:
    """Tell whether there is attention to show."""
    model = in_torch(owner)
    return model is not None and has_attention(model)


def in_torch(owner: Any) -> nn.Module | None:
    """Return the module behind a predictor, which alone can be explained; None for an exported model."""
    try:
        return owner.model
    except ConfigError:  # an exported model is no module
        return None
