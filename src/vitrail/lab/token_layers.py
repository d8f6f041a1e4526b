"""Layers that are to learn a function of tokens: attention, and convolutions of as many parameters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.nn.attention import MultiHeadAttention

LayerName = Literal["attention", "convolution", "stacked convolutions"]
LAYERS: tuple[LayerName, ...] = ("attention", "convolution", "stacked convolutions")
KERNEL_SIZE = 3


def build_layer(name: LayerName, dim: int, length: int) -> nn.Module:
    """Return a layer with random weights; the convolutions have as many as attention, or a few more.

    Args:
        name: of the layer.
        dim: width of tokens.
        length: symbols of the sequences; stacked convolutions see the stop behind them, too.
    """
    attention = _Attention(dim)
    if name == "attention":
        return attention
    num_layers = math.ceil(math.log2(length + 1))  # so that the first token sees the stop
    kernel_size, gaps = (
        (KERNEL_SIZE, [1]) if name == "convolution" else (2, [2**layer for layer in range(num_layers)])
    )
    model, width = nn.Module(), 0
    while num_parameters(model) < num_parameters(attention):
        width += 1
        model = _Convolutions(dim, width, kernel_size=kernel_size, gaps=gaps)
    return model


def num_parameters(model: nn.Module) -> int:
    """Return how many numbers are learned."""
    return sum(parameter.numel() for parameter in model.parameters())


class _Attention(nn.Module):
    """A layer of attention; in a list, as in a model, so that its matrices are those of a block."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([MultiHeadAttention(dim, 1, qkv_bias=False)])

    def forward(self, x: Float[Tensor, "batch tokens dim"]) -> Float[Tensor, "batch tokens dim"]:
        out: Tensor = self.layers[0](x)
        return out


class _Convolutions(nn.Module):
    """Convolutions that look from each token ahead, each with a greater gap, and a product at last."""

    def __init__(self, dim: int, width: int, *, kernel_size: int, gaps: Sequence[int]) -> None:
        super().__init__()
        widths = [dim] + [width] * len(gaps)
        self.layers = nn.ModuleList(
            nn.Conv1d(before, after, kernel_size, dilation=gap)
            for (before, after), gap in zip(pairwise(widths), gaps, strict=True)
        )
        self.reach = [(kernel_size - 1) * gap for gap in gaps]
        self.projection = nn.Linear(width, dim)

    def forward(self, x: Float[Tensor, "batch tokens dim"]) -> Float[Tensor, "batch tokens dim"]:
        x = x.mT  # b d n
        for layer, reach in zip(self.layers, self.reach, strict=True):
            x = F.relu(layer(F.pad(x, (0, reach))))
        out: Tensor = self.projection(x.mT)
        return out
