"""Stems of a Vision Transformer other than one linear layer: two layers, or convolutions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import nn

from vitrail.nn.convolution import ChannelLayerNorm
from vitrail.nn.linear import Linear
from vitrail.nn.patches import PatchEmbed, pad_to_multiple
from vitrail.nn.tokens import FeatureMap, Images


class PatchMLP(nn.Module):
    """Patch embedding by two linear layers with GELU between them.

    Departs from Dosovitskiy et al. 2021, equation 1, which has one linear layer.
    """

    def __init__(self, in_channels: int, dim: int, *, patch_size: int) -> None:
        super().__init__()
        self.hidden = PatchEmbed(in_channels, dim, patch_size=patch_size)
        self.activation = nn.GELU()
        self.projection = Linear(dim, dim)
        nn.init.trunc_normal_(self.projection.weight, std=dim**-0.5)  # LeCun, as the first layer
        nn.init.zeros_(self.projection.bias)

    def forward(self, images: Images) -> FeatureMap:
        patches = self.activation(self.hidden(images)).movedim(1, -1)  # b rows columns d
        return self.projection(patches).movedim(-1, 1)


class ResidualConvolutions(nn.Module):
    """Residual block of two 3x3 convolutions, each with a norm, GELU between them.

    Paper: He et al. 2016, figure 2. Departs from the paper: GELU, and none after the sum.
    """

    def __init__(self, channels: int, *, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            _convolution(channels, channels),
            norm(channels),
            nn.GELU(),
            _convolution(channels, channels),
            norm(channels),
        )

    def forward(self, x: FeatureMap) -> FeatureMap:
        return x + self.branch(x)


class ConvStem(nn.Module):
    """Convolutional stem: 3x3 convolutions, each with norm and GELU, and a projection to tokens.

    Residual convolutions may follow each of them: a small network of the hybrid kind before the blocks.

    Args:
        patch_size: a multiple of the product of the strides; the projection has the remaining stride, and is
            1x1 where none remains.
        depths: number of ``ResidualConvolutions`` after each convolution; none by default.

    Paper: Xiao et al. 2021, section 3.1; Hassani et al. 2021 (CCT), section 3.2; with residual
    convolutions Dosovitskiy et al. 2021, section 3.1, "hybrid architecture".
    Departs from the paper: GELU where Xiao et al. have ReLU.
    """

    def __init__(
        self,
        in_channels: int,
        dim: int,
        *,
        patch_size: int,
        channels: Sequence[int],
        strides: Sequence[int],
        depths: Sequence[int] = (),
        norm: Callable[[int], nn.Module] = ChannelLayerNorm,
    ) -> None:
        super().__init__()
        rest, remainder = divmod(patch_size, math.prod(strides))
        assert not remainder, f"strides {strides} do not make patches of {patch_size}"
        self.patch_size = patch_size
        widths = (in_channels, *channels)
        layers: list[nn.Module] = []
        stages = zip(pairwise(widths), strides, depths or [0] * len(strides), strict=True)
        for (before, after), stride, depth in stages:
            layers += [_convolution(before, after, stride=stride), norm(after), nn.GELU()]
            layers += [ResidualConvolutions(after, norm=norm) for _ in range(depth)]
        self.layers = nn.Sequential(*layers)
        self.projection = PatchEmbed(widths[-1], dim, patch_size=rest)

    def forward(self, images: Images) -> FeatureMap:
        images = pad_to_multiple(images, (self.patch_size, self.patch_size))
        return self.projection(self.layers(images.contiguous(memory_format=torch.channels_last)))


def _convolution(before: int, after: int, *, stride: int = 1) -> nn.Conv2d:
    convolution = nn.Conv2d(before, after, 3, stride=stride, padding=1, bias=False)
    nn.init.kaiming_normal_(convolution.weight, mode="fan_out")  # He et al. 2015
    return convolution
