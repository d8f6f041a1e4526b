"""Weight initialisation shared by several papers."""

from __future__ import annotations

from torch import nn


def draw_linear_layers(module: nn.Module, *, std: float = 0.02) -> None:
    """Initialise every linear layer with truncated normal weights, within two ``std``, and zero bias.

    Other layers keep their own initialisation.

    Paper: Touvron et al. 2021 (DeiT), section 6; Swin, PVT and MViTv2 do so in their published code.
    """
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            nn.init.trunc_normal_(layer.weight, std=std)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
