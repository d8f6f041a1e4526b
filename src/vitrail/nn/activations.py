"""Activations that save memory where nothing is to be differentiated."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn


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
