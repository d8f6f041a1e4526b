"""Activations that work in place when no gradient is needed.

On a CPU, the page faults of another hidden tensor cost more than the activation itself.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.nn.blocks import QUICK_GELU_SLOPE, QuickGELU

Values = Float[Tensor, "*batch dim"]


class OverwritingGELU(nn.GELU):
    """Exact GELU."""

    def forward(self, x: Values) -> Values:
        if torch.is_grad_enabled():
            return F.gelu(x)
        activated: Tensor = torch.ops.aten.gelu_(x)
        return activated


class OverwritingQuickGELU(QuickGELU):
    """GELU, sigmoid approximation."""

    def forward(self, x: Values) -> Values:
        gate = torch.sigmoid(QUICK_GELU_SLOPE * x)
        return x * gate if torch.is_grad_enabled() else x.mul_(gate)


class OverwritingReLU(nn.ReLU):
    """ReLU."""

    def forward(self, x: Values) -> Values:
        return F.relu(x, inplace=not torch.is_grad_enabled())


class OverwritingSiLU(nn.SiLU):
    """SiLU, ``x sigmoid(x)``."""

    def forward(self, x: Values) -> Values:
        return silu(x)


def silu(x: Values) -> Values:
    """Return ``x sigmoid(x)``, computed in place when no gradient is needed."""
    return F.silu(x, inplace=not torch.is_grad_enabled())
