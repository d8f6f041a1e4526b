"""Linear layers: a slice of one, a diagonal one, and an initialisation that several papers share."""

from __future__ import annotations

from typing import TypeVar

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

Layer = TypeVar("Layer", bound=nn.Module)


class Linear(nn.Linear):
    """A linear layer that can compute a slice of its outputs."""

    def part(
        self, x: Float[Tensor, "*batch in_dim"], start: int, stop: int
    ) -> Float[Tensor, "*batch part_dim"]:
        """Return the outputs ``start`` to ``stop``, exclusive."""
        return F.linear(x, self.weight[start:stop], None if self.bias is None else self.bias[start:stop])


class LayerScale(nn.Module):
    """Multiply each channel by a learned factor that starts at ``initial``.

    Paper: Touvron et al. 2021 (CaiT), equation 3.
    """

    def __init__(self, dim: int, *, initial: float) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.full((dim,), initial))

    def forward(self, x: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch dim"]:
        return x * self.factor.to(x.dtype)


def draw_linear_layers(module: Layer) -> Layer:
    """Initialise every linear layer with truncated normal weights, within two standard deviations of
    0.02, and zero bias.

    Other layers keep their own initialisation. Returns the module.

    Paper: Touvron et al. 2021 (DeiT), section 6; Swin, PVT and MViTv2 do so in their published code.
    """
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            nn.init.trunc_normal_(layer.weight, std=0.02)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    return module
