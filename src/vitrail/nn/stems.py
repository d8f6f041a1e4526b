"""Stems of a Vision Transformer other than one linear layer: two layers, convolutions, residual networks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import nn

from vitrail.nn.convolution import ChannelLayerNorm, StandardisedConvolution, pad_same
from vitrail.nn.linear import Linear
from vitrail.nn.patches import PatchEmbed, pad_to_multiple
from vitrail.nn.tokens import FeatureMap, Images, InputMap

NUM_GROUPS = 32  # Wu and He 2018, section 4.1


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


class StandardisedBottleneck(nn.Module):
    """``relu(shortcut + norm(conv(act(conv(act(conv(x)))))))`` of 1x1, 3x3, 1x1 convolutions.

    ``act`` is a group norm and ReLU; kernels are standardised, as in Big Transfer.

    Args:
        stride: of the 3x3 convolution and the shortcut.
        projects: whether the shortcut is a 1x1 convolution with a norm instead of ``x`` itself.

    Paper: He et al. 2016, figure 5; Dosovitskiy et al. 2021, section 4.1 (norms); the stride: published code.
    """

    def __init__(self, in_channels: int, out_channels: int, *, stride: int, projects: bool) -> None:
        super().__init__()
        hidden = out_channels // 4
        self.branch = nn.Sequential(
            StandardisedConvolution(in_channels, hidden, 1),
            nn.GroupNorm(NUM_GROUPS, hidden),
            nn.ReLU(),
            StandardisedConvolution(hidden, hidden, 3, stride=stride, padding="same"),
            nn.GroupNorm(NUM_GROUPS, hidden),
            nn.ReLU(),
            StandardisedConvolution(hidden, out_channels, 1),
            nn.GroupNorm(NUM_GROUPS, out_channels),
        )
        self.shortcut: nn.Module = nn.Identity()
        if projects:
            self.shortcut = nn.Sequential(
                StandardisedConvolution(in_channels, out_channels, 1, stride=stride, padding="same"),
                nn.GroupNorm(NUM_GROUPS, out_channels),
            )

    def forward(self, x: InputMap) -> FeatureMap:
        return F.relu(self.branch(x) + self.shortcut(x))


class ResNetStem(nn.Module):
    """Hybrid: the first stages of a residual network, whose feature map is cut into patches.

    Args:
        patch_size: a multiple of the network's stride (``resnet_stride``); the projection has the rest.
        depths: number of blocks of each stage; without any, a convolution and max-pooling remain.
        width: channels of the first convolution; stages have 4, 8, 16 and 32 times as many.

    Paper: Dosovitskiy et al. 2021, section 3.1, "hybrid architecture", and section 4.1.
    """

    def __init__(
        self, in_channels: int, dim: int, *, patch_size: int, depths: Sequence[int], width: int
    ) -> None:
        super().__init__()
        rest, remainder = divmod(patch_size, resnet_stride(depths))
        assert not remainder, f"stages {depths} do not make patches of {patch_size}"
        self.first = StandardisedConvolution(in_channels, width, 7, stride=2, padding="same")
        self.norm = nn.GroupNorm(NUM_GROUPS, width)
        self.stages, before = nn.ModuleList(), width
        for stage, depth in enumerate(depths):
            after, blocks = 4 * width * 2**stage, []
            for index in range(depth):
                stride = 2 if stage and index == 0 else 1
                blocks.append(StandardisedBottleneck(before, after, stride=stride, projects=index == 0))
                before = after
            self.stages.append(nn.Sequential(*blocks))
        self.projection = PatchEmbed(before, dim, patch_size=rest)

    def forward(self, images: Images) -> FeatureMap:
        x = self.first(images.contiguous(memory_format=torch.channels_last))
        x = F.relu(self.norm(x))
        x = F.max_pool2d(pad_same(x, 3, 2), kernel_size=3, stride=2)  # zeros are no maxima after ReLU
        for stage in self.stages:
            x = stage(x)
        return self.projection(x)


def resnet_stride(depths: Sequence[int]) -> int:
    """Return the stride of a ``ResNetStem`` before its projection; each stage after the first doubles it."""
    return 4 * 2 ** max(len(depths) - 1, 0)


def _convolution(before: int, after: int, *, stride: int = 1) -> nn.Conv2d:
    convolution = nn.Conv2d(before, after, 3, stride=stride, padding=1, bias=False)
    nn.init.kaiming_normal_(convolution.weight, mode="fan_out")  # He et al. 2015
    return convolution
