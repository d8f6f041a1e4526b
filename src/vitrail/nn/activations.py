"""Activations that save memory where nothing is to be differentiated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

ActivationName = Literal["gelu", "quick_gelu", "relu", "silu"]

QUICK_GELU_SLOPE = 1.702  # Hendrycks and Gimpel 2016, section 2


class OverwritingGELU(nn.Module):
    """Apply GELU; with gradients disabled, to the very memory of its input, which is lost.

    For hidden values that nobody else reads. On a processor the page faults of another hidden tensor cost
    more than GELU itself.

    Paper: Hendrycks and Gimpel 2016, the exact form.
    """

    def forward(self, x: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch dim"]:
        """Return the activated values."""
        if torch.is_grad_enabled():
            return F.gelu(x)
        activated: Tensor = torch.ops.aten.gelu_(x)
        return activated


class OverwritingQuickGELU(nn.Module):
    """Apply ``x sigmoid(1.702 x)``; with gradients disabled, to the very memory of its input, which is lost.

    Paper: Hendrycks and Gimpel 2016, section 2, the approximation by a sigmoid, which CLIP was trained with.
    """

    def forward(self, x: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch dim"]:
        """Return the activated values."""
        gate = torch.sigmoid(QUICK_GELU_SLOPE * x)
        return x * gate if torch.is_grad_enabled() else x.mul_(gate)


class OverwritingReLU(nn.Module):
    """Apply the rectifier; with gradients disabled, to the very memory of its input, which is lost.

    Paper: Vaswani et al. 2017, equation 2.
    """

    def forward(self, x: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch dim"]:
        """Return the activated values."""
        return F.relu(x, inplace=not torch.is_grad_enabled())


class OverwritingSiLU(nn.Module):
    """Apply ``x sigmoid(x)``; with gradients disabled, to the very memory of its input, which is lost.

    Paper: Hendrycks and Gimpel 2016, section 2.
    """

    def forward(self, x: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch dim"]:
        """Return the activated values."""
        return F.silu(x, inplace=not torch.is_grad_enabled())


ACTIVATIONS: dict[ActivationName, Callable[[], nn.Module]] = {
    "gelu": OverwritingGELU,
    "quick_gelu": OverwritingQuickGELU,
    "relu": OverwritingReLU,
    "silu": OverwritingSiLU,
}
"""What makes each activation by its name."""
