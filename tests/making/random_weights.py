"""Weights under which no term of a model can be missing unseen."""

from __future__ import annotations

from torch import nn


def randomise(model: nn.Module, *, spread: float = 0.2) -> nn.Module:
    """Draw every parameter: scales of norms around one, matrices that keep the scale, biases and tables."""
    for name, parameter in model.named_parameters():
        if "norm" in name and name.endswith("weight"):
            nn.init.normal_(parameter, mean=1.0, std=spread)
        elif parameter.ndim > 1 and not any(table in name for table in ("position", "token")):
            nn.init.normal_(parameter, std=parameter[0].numel() ** -0.5)
        else:
            nn.init.normal_(parameter, std=spread)
    return model.eval()
