"""How weights are drawn that several papers draw alike."""

from __future__ import annotations

from torch import nn


def draw_linear_layers(module: nn.Module, *, std: float = 0.02) -> None:
    """Draw the weights of every linear layer within two deviations of zero, and set its bias to zero.

    Other layers keep what they drew themselves.

    Args:
        module: whose layers are drawn, in the order of ``module.modules()``.
        std: deviation of the weights, before those beyond two of it are drawn again.

    Paper: Touvron et al. 2021 (DeiT), section 6; Swin, PVT and MViTv2 do so in their published code.
    """
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            nn.init.trunc_normal_(layer.weight, std=std)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
