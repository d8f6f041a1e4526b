"""Random weights for convolutional references, with statistics that keep their maps near one.

A hundred random layers amplify rounding errors: float32 logits of timm's ResNet-152 are 1e-3 away from its
own float64 logits. Small factors, as trained networks have them, damp that; deep models are compared in
float64.
"""

from __future__ import annotations

import torch
from torch import nn


def randomise_with_statistics(model: nn.Module, images: torch.Tensor) -> nn.Module:
    """Draw every parameter, take the batch norms' statistics from images, scale logits to one; evaluation."""
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d | nn.GroupNorm):
            nn.init.normal_(module.weight, mean=0.25, std=0.1)
            nn.init.normal_(module.bias, std=0.2)
        elif isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.normal_(module.weight, std=module.weight[0].numel() ** -0.5)
            if module.bias is not None:
                nn.init.normal_(module.bias, std=0.2)
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = 1.0
    with torch.no_grad():
        model.train()(images)
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
        logits = model.eval()(images)
        head = [module for module in model.modules() if isinstance(module, nn.Conv2d | nn.Linear)][-1]
        head.weight /= getattr(logits, "logits", logits).std()
    return model
