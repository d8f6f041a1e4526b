"""Activations by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

ActivationName = Literal["gelu", "quick_gelu", "relu", "silu"]

QUICK_GELU_SLOPE = 1.702  # Hendrycks and Gimpel 2016, section 2


class QuickGELU(nn.Module):
    """``x sigmoid(1.702 x)``, GELU's sigmoid approximation, with which CLIP was trained.

    Paper: Hendrycks and Gimpel 2016, section 2.
    """

    def forward(self, x: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch dim"]:
        return x * torch.sigmoid(QUICK_GELU_SLOPE * x)


ACTIVATIONS: dict[ActivationName, Callable[[], nn.Module]] = {
    "gelu": nn.GELU,
    "quick_gelu": QuickGELU,
    "relu": nn.ReLU,
    "silu": nn.SiLU,
}
"""Activation modules by name."""
