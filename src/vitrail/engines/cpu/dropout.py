"""Dropout with a fast random mask on a CPU."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from vitrail.nn.blocks import Dropout

_STEPS = 2**16  # resolution of a draw: probabilities are kept to 1 / 65,536
_DRAWS = 4  # 16 bits each, in one 64-bit number


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
