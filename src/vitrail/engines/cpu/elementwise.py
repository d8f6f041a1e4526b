"""Activations that work in place when no gradient is needed, and dropout with a fast random mask.

On a CPU, the page faults of another hidden tensor cost more than the activation itself.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from vitrail.nn.activations import QUICK_GELU_SLOPE, QuickGELU
from vitrail.nn.blocks import Dropout

_STEPS = 2**16  # resolution of a draw: probabilities are kept to 1 / 65,536
_DRAWS = 4  # 16 bits each, in one 64-bit number

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


class FastDropout(Dropout):
    """Dropout with a mask of 16 random bits per value."""

    def forward(self, x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        return dropout(x, self.probability if self.training else 0.0)


def dropout(x: Float[Tensor, "*shape"], probability: float) -> Float[Tensor, "*shape"]:
    """Drop values with a probability, kept to 1 / 65,536 on a CPU, and scale up the others.

    On a CPU the mask takes 16 random bits per value, drawn 64 at a time: torch 2.13 takes 4 to 8 times as
    long there (docs/log.md). Elsewhere, and in compiled code, this is torch's own dropout.
    """
    if probability == 0:
        return x
    if x.device.type != "cpu" or torch.compiler.is_compiling():
        return F.dropout(x, probability)
    dropped: Tensor = _MaskedDropout.apply(x, round(probability * _STEPS))  # type: ignore[no-untyped-call]
    return dropped


class _MaskedDropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, num_dropped: int) -> Tensor:
        """Keep a value where its 16 bits make a number of at least ``num_dropped``."""
        whole = torch.empty(-(-x.numel() // _DRAWS), dtype=torch.int64).random_(-(2**63), None)
        draws = whole.view(torch.int16)[: x.numel()].view(x.shape)
        keep = draws >= num_dropped - _STEPS // 2
        ctx.scale = _STEPS / (_STEPS - num_dropped)
        ctx.save_for_backward(keep)
        return (x * keep).mul_(ctx.scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (keep,) = ctx.saved_tensors
        return (gradient * keep).mul_(ctx.scale), None
