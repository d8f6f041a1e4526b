"""EfficientNet: a convolutional network with compound scaling of width, depth and image size.

Papers: Tan and Le 2019 (B0 to B7); Xie et al. 2020 (L2). Input: any height and width.

The authors' weights were trained with TensorFlow's padding, which depends on the size of the feature map
(``padding="same"``); those trained in PyTorch have equally many zeros on both sides (``_symmetric``).
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterator
from functools import partial
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import nn

from vitrail.models.contract import ImageModelConfig, ModelConfig
from vitrail.models.pyramid import Pyramid
from vitrail.nn.blocks import DropPath
from vitrail.nn.convolution import NormedConvolution, NormFactory, Padding
from vitrail.nn.tokens import FeatureMap, Images, InputMap

CHANNEL_MULTIPLE = 8  # Tan and Le 2019, published code
STEM_CHANNELS, HEAD_CHANNELS = 32, 1280  # Tan and Le 2019, table 1
SQUEEZE = 4  # Tan and Le 2019, published code: a quarter of the block's input channels


class _Stage(NamedTuple):
    expansion: int
    kernel_size: int
    stride: int
    channels: int
    depth: int


# Tan and Le 2019, table 1, stages 2 to 8.
STAGES = (
    _Stage(expansion=1, kernel_size=3, stride=1, channels=16, depth=1),
    _Stage(expansion=6, kernel_size=3, stride=2, channels=24, depth=2),
    _Stage(expansion=6, kernel_size=5, stride=2, channels=40, depth=2),
    _Stage(expansion=6, kernel_size=3, stride=2, channels=80, depth=3),
    _Stage(expansion=6, kernel_size=5, stride=1, channels=112, depth=3),
    _Stage(expansion=6, kernel_size=5, stride=2, channels=192, depth=4),
    _Stage(expansion=6, kernel_size=3, stride=1, channels=320, depth=1),
)


class EfficientNetConfig(ImageModelConfig):
    """Settings of an EfficientNet."""

    family: ClassVar[str] = "efficientnet"
    paper: ClassVar[str] = "Tan and Le 2019; Xie et al. 2020 (L2)"
    position_policy: ClassVar[str] = "none; the convolutions see their surroundings"
    size_policy: ClassVar[str] = "each convolution is padded with zeros, so every size divides"

    width_factor: float = Field(default=1.0, gt=0)
    """Width multiplier relative to B0; channels are rounded to multiples of eight."""
    depth_factor: float = Field(default=1.0, gt=0, le=64)
    """Depth multiplier relative to B0; numbers of blocks are rounded up."""
    padding: Padding = "same"
    """Zero padding of strided convolutions: ``same`` for the authors' weights, or ``symmetric``."""
    norm_eps: float = Field(default=1e-3, gt=0)
    """Added to the variances."""
    norm_momentum: float = Field(default=0.01, gt=0, le=1)
    """Share of the newest batch in the running statistics."""
    dropout: float = Field(default=0.2, ge=0, lt=1)
    """Dropout probability before the head."""
    drop_path: float = Field(default=0.2, ge=0, lt=1)
    """Stochastic-depth rate after the last block, linear from 0."""

    def channels(self, of_b0: int) -> int:
        """Return the channels of a layer: B0's times the multiplier, rounded to a multiple, at least nine
        tenths."""
        exact = of_b0 * self.width_factor
        near = max(CHANNEL_MULTIPLE, int(exact + CHANNEL_MULTIPLE / 2) // CHANNEL_MULTIPLE * CHANNEL_MULTIPLE)
        return near + CHANNEL_MULTIPLE if near < 0.9 * exact else near  # Tan and Le 2019, published code

    @property
    def depths(self) -> tuple[int, ...]:
        return tuple(math.ceil(stage.depth * self.depth_factor) for stage in STAGES)

    def blocks(self) -> Iterator[tuple[int, int, int]]:
        """Yield the stage, the index in it and the expansion of each block, in order."""
        for number, (stage, depth) in enumerate(zip(STAGES, self.depths, strict=True)):
            for index in range(depth):
                yield number, index, stage.expansion

    def build(self) -> EfficientNet:
        return EfficientNet(self)


class EfficientNet(Pyramid):
    """A stem, stages of inverted residual blocks, a 1x1 convolution, and a linear layer on the mean.

    Paper: Tan and Le 2019, table 1.
    """

    def __init__(self, config: EfficientNetConfig) -> None:
        super().__init__()
        self.config = config
        last, wide = config.channels(STAGES[-1].channels), config.channels(HEAD_CHANNELS)
        classifier = nn.Linear(wide, config.num_classes)
        bound = config.num_classes**-0.5  # Tan and Le 2019, published code
        nn.init.uniform_(classifier.weight, -bound, bound)
        nn.init.zeros_(classifier.bias)
        self.stem = ConvolutionStem(
            config.num_channels, config.channels(STEM_CHANNELS), norm=_norm(config), padding=config.padding
        )
        self.stages = nn.ModuleList(_build_stage(config, index) for index in range(len(STAGES)))
        self.final = NormedConvolution(last, wide, 1, norm=_norm(config), activation=F.silu)
        self.head = nn.Sequential(
            OrderedDict(dropout=nn.Dropout(config.dropout, inplace=True), classifier=classifier)
        )


class SqueezeExcite(nn.Module):
    """Squeeze-and-excitation: scale each channel by a factor in 0..1, from an MLP on all channels' means.

    Paper: Hu et al. 2018, equations 2 to 4. Departs from the paper: SiLU for ReLU, as Tan and Le 2019.
    """

    def __init__(self, channels: int, hidden_channels: int) -> None:
        super().__init__()
        self.reduce = nn.Linear(channels, hidden_channels)
        self.expand = nn.Linear(hidden_channels, channels)
        for linear in (self.reduce, self.expand):
            nn.init.normal_(linear.weight, std=(2 / linear.out_features) ** 0.5)  # as the convolutions
            nn.init.zeros_(linear.bias)

    def forward(self, x: FeatureMap) -> FeatureMap:
        factors = torch.sigmoid(self.expand(F.silu(self.reduce(x.mean(dim=(2, 3))))))  # batch channels
        return x * factors[..., None, None]


class InvertedResidual(nn.Module):
    """1x1 convolution to more channels, depthwise convolution, squeeze and excitation, 1x1 convolution.

    Args:
        out_channels: if equal to ``in_channels``, and with stride one, there is a residual sum.
        expansion: hidden channels relative to ``in_channels``; one leaves the first convolution out.
        kernel_size, stride, padding: of the depthwise convolution.

    Paper: Sandler et al. 2018, figure 4 (d); Tan and Le 2019, section 4.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        expansion: int,
        kernel_size: int,
        stride: int,
        norm: NormFactory,
        padding: Padding,
        drop_path: float = 0.0,
    ) -> None:
        super().__init__()
        hidden = in_channels * expansion
        self.adds = stride == 1 and in_channels == out_channels
        self.widen = (
            NormedConvolution(in_channels, hidden, 1, norm=norm, activation=F.silu)
            if expansion > 1
            else nn.Identity()
        )
        self.depthwise = NormedConvolution(
            hidden,
            hidden,
            kernel_size,
            stride=stride,
            groups=hidden,
            norm=norm,
            activation=F.silu,
            padding=padding,
        )
        self.squeeze = SqueezeExcite(hidden, max(1, in_channels // SQUEEZE))
        self.narrow = NormedConvolution(hidden, out_channels, 1, norm=norm, activation=None)
        self.drop_path = DropPath(drop_path)

    def forward(self, x: InputMap) -> FeatureMap:
        branch = self.narrow(self.squeeze(self.depthwise(self.widen(x))))
        return self.drop_path(branch).add_(x) if self.adds else branch


class ConvolutionStem(nn.Module):
    """A 3x3 convolution with stride two.

    Paper: Tan and Le 2019, table 1, stage 1.
    """

    def __init__(self, in_channels: int, channels: int, *, norm: NormFactory, padding: Padding) -> None:
        super().__init__()
        self.first = NormedConvolution(
            in_channels, channels, 3, stride=2, norm=norm, activation=F.silu, padding=padding
        )

    def forward(self, images: Images) -> FeatureMap:
        """Return a feature map in channels-last memory, of half the height and width, rounded up."""
        return self.first(images.contiguous(memory_format=torch.channels_last))


# Factors, image sizes and dropout of the published code; the text of Tan and Le 2019, section 5, rounds them.
_SCALED = {
    "b0": EfficientNetConfig(),
    "b1": EfficientNetConfig(depth_factor=1.1, image_size=(240, 240)),
    "b2": EfficientNetConfig(width_factor=1.1, depth_factor=1.2, image_size=(260, 260), dropout=0.3),
    "b3": EfficientNetConfig(width_factor=1.2, depth_factor=1.4, image_size=(300, 300), dropout=0.3),
    "b4": EfficientNetConfig(width_factor=1.4, depth_factor=1.8, image_size=(380, 380), dropout=0.4),
    "b5": EfficientNetConfig(width_factor=1.6, depth_factor=2.2, image_size=(456, 456), dropout=0.4),
    "b6": EfficientNetConfig(width_factor=1.8, depth_factor=2.6, image_size=(528, 528), dropout=0.5),
    "b7": EfficientNetConfig(width_factor=2.0, depth_factor=3.1, image_size=(600, 600), dropout=0.5),
    # Xie et al. 2020, table 7
    "l2": EfficientNetConfig(width_factor=4.3, depth_factor=5.3, image_size=(800, 800), dropout=0.5),
}
_SMALL_EPS = ("b0", "b1", "b2", "b3", "b4")  # whose PyTorch weights were trained with PyTorch's epsilon

VARIANTS: dict[str, ModelConfig] = {
    **{f"efficientnet_{size}": config for size, config in _SCALED.items()},
    **{
        f"efficientnet_{size}_symmetric": config.with_changes(
            {"padding": "symmetric", "norm_eps": 1e-5 if size in _SMALL_EPS else 1e-3}
        )
        for size, config in _SCALED.items()
        if size != "l2"
    },
}


def _build_stage(config: EfficientNetConfig, index: int) -> nn.Sequential:
    stage, depth = STAGES[index], config.depths[index]
    before_first = config.channels(STAGES[index - 1].channels if index else STEM_CHANNELS)
    after = config.channels(stage.channels)
    first, total = sum(config.depths[:index]), sum(config.depths)
    return nn.Sequential(
        *(
            InvertedResidual(
                after if block else before_first,
                after,
                expansion=stage.expansion,
                kernel_size=stage.kernel_size,
                stride=1 if block else stage.stride,
                norm=_norm(config),
                padding=config.padding,
                drop_path=config.drop_path * (first + block) / total,
            )
            for block in range(depth)
        )
    )


def _norm(config: EfficientNetConfig) -> NormFactory:
    return partial(nn.BatchNorm2d, eps=config.norm_eps, momentum=config.norm_momentum)
