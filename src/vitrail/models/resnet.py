"""ResNet, as a classifier and as the backbone of detectors.

Papers: He et al. 2016; as DETR's backbone Carion et al. 2020. Input: any height and width.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from itertools import pairwise
from typing import ClassVar, Literal, Self

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import nn

from vitrail.models.contract import ImageModelConfig, ModelConfig
from vitrail.models.pyramid import Pyramid
from vitrail.nn.blocks import DropPath, drop_path_stages
from vitrail.nn.convolution import FrozenBatchNorm, NormedConvolution, NormFactory
from vitrail.nn.feature_maps import run_stages
from vitrail.nn.tokens import FeatureMap, Images, InputMap

EXPANSION = 4  # He et al. 2016, table 1: a bottleneck's last convolution is four times as wide


class ResNetConfig(ImageModelConfig):
    """Settings of a residual network."""

    family: ClassVar[str] = "resnet"
    paper: ClassVar[str] = "He et al. 2016; as a backbone Carion et al. 2020 (DETR)"
    position_policy: ClassVar[str] = "none; the convolutions see their surroundings"
    size_policy: ClassVar[str] = "each convolution is padded with zeros, so every size divides"

    block: Literal["basic", "bottleneck"] = "bottleneck"
    """Residual branch: two 3x3 convolutions, or one between two 1x1 ones."""
    width: int = Field(default=64, ge=4)
    """Channels of the stem and of the first stage's 3x3 convolutions; each further stage doubles them."""
    depths: tuple[int, ...] = (3, 4, 6, 3)
    """Number of blocks in each stage; each stage but the first halves rows and columns."""
    norm: Literal["batch", "frozen"] = "batch"
    """Learned batch norm, or frozen statistics, scale and shift, as in a detector."""
    norm_eps: float = Field(default=1e-5, gt=0)
    """Added to the variances."""
    dilated: bool = False
    """Whether the last stage keeps its resolution and dilates its 3x3 convolutions ("DC5")."""
    zero_branches: bool = False
    """Whether residual branches start as zero (Goyal et al. 2017), by zero scale of their last norm; their
    other layers then have no gradient in the first step."""
    drop_path: float = Field(default=0.0, ge=0, lt=1)
    """Stochastic-depth rate of the last block, linear from 0."""

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if not self.depths or min(self.depths) < 1:
            raise ValueError(f"depths {self.depths} need at least one block in each stage")
        if self.dilated and (len(self.depths) < 2 or self.block == "basic"):
            raise ValueError("dilated true needs block 'bottleneck' and a second stage")
        if self.zero_branches and self.norm == "frozen":
            raise ValueError("zero_branches true would stay so with norm 'frozen'; use norm 'batch'")
        return self

    @property
    def channels(self) -> tuple[int, ...]:
        expansion = EXPANSION if self.block == "bottleneck" else 1
        return tuple(self.width * expansion * 2**stage for stage in range(len(self.depths)))

    @property
    def num_convolutions(self) -> int:
        """Convolutions in each residual branch."""
        return 3 if self.block == "bottleneck" else 2

    def has_projection(self, stage: int, index: int) -> bool:
        """Tell whether a block's shortcut is a convolution; both indices start at zero."""
        return index == 0 and (stage > 0 or self.block == "bottleneck")

    def build(self) -> ResNet:
        return ResNet(self)


class ResNet(Pyramid):
    """A stem, stages of residual blocks, and a linear layer on the mean over positions.

    Paper: He et al. 2016, table 1.
    """

    def __init__(self, config: ResNetConfig) -> None:
        super().__init__()
        self.config = config
        self.stem = ConvolutionPoolStem(config.num_channels, config.width, norm=_norm(config))
        self.stages = nn.ModuleList(_build_stage(config, stage) for stage in range(len(config.depths)))
        self.final = nn.Identity()  # a block ends with its activation
        self.head = nn.Linear(config.channels[-1], config.num_classes)  # torch's own initial weights


class Backbone(nn.Module):
    """Stem and stages of a pyramid without its head, for models that read its feature maps.

    Args:
        num_frozen: parts, from the stem on, whose weights are not trained.
    """

    def __init__(self, *, stem: nn.Module, stages: Iterable[nn.Module], num_frozen: int = 0) -> None:
        super().__init__()
        self.stem = stem
        self.stages = nn.ModuleList(stages)
        for part in [stem, *self.stages][:num_frozen]:
            part.requires_grad_(False)

    def forward(self, images: Images) -> list[FeatureMap]:
        return run_stages(self.stages, self.stem(images))


def build_backbone(config: ResNetConfig, *, num_frozen: int = 0) -> Backbone:
    """Return a new ResNet without its head, as detectors read it."""
    stem = ConvolutionPoolStem(config.num_channels, config.width, norm=_norm(config))
    stages = [_build_stage(config, stage) for stage in range(len(config.depths))]
    return Backbone(stem=stem, stages=stages, num_frozen=num_frozen)


class ResidualBlock(nn.Module):
    """``relu(shortcut(x) + branch(x))``.

    Args:
        branch: its last layer has no activation, and nothing else keeps its result.
        shortcut: fits the input to the branch's result; identity where it does.
        overwrites: whether, in evaluation without gradients, the result may overwrite the input, if nothing
            else reads it. Fresh pages of a large feature map cost more than its sum.

    Paper: He et al. 2016, equations 1 and 2.
    """

    def __init__(
        self, *, branch: nn.Sequential, shortcut: nn.Module, drop_path: float = 0.0, overwrites: bool = False
    ) -> None:
        super().__init__()
        self.branch = branch
        self.shortcut = shortcut
        self.drop_path = DropPath(drop_path)
        self.overwrites = overwrites

    def forward(self, x: InputMap) -> FeatureMap:
        return F.relu(self.drop_path(self.branch(x)) + self.shortcut(x))

    def zero_branch(self) -> None:
        """Zero the scale of the branch's last norm, so that the block starts as its shortcut.

        Paper: Goyal et al. 2017, section 5.1.
        """
        last = self.branch[-1]
        assert isinstance(last, NormedConvolution)
        nn.init.zeros_(last.norm.weight)


class ConvolutionPoolStem(nn.Module):
    """A 7x7 convolution and a 3x3 max-pooling, each with stride two.

    Paper: He et al. 2016, table 1.
    """

    def __init__(self, in_channels: int, channels: int, *, norm: NormFactory) -> None:
        super().__init__()
        self.first = NormedConvolution(in_channels, channels, 7, stride=2, norm=norm)

    def forward(self, images: Images) -> FeatureMap:
        """Return a feature map in channels-last memory, of a quarter of the height and width, rounded up."""
        x = self.first(images.contiguous(memory_format=torch.channels_last))
        return F.max_pool2d(x, kernel_size=3, stride=2, padding=1)


def make_basic_branch(
    in_channels: int, out_channels: int, *, stride: int, dilation: int, norm: NormFactory
) -> nn.Sequential:
    """Return two 3x3 convolutions; the first has stride and dilation.

    Paper: He et al. 2016, figure 5, left.
    """
    return nn.Sequential(
        NormedConvolution(in_channels, out_channels, 3, stride=stride, dilation=dilation, norm=norm),
        NormedConvolution(out_channels, out_channels, 3, dilation=1, norm=norm, activation=None),
    )


def make_bottleneck_branch(
    in_channels: int, out_channels: int, *, stride: int, dilation: int, norm: NormFactory
) -> nn.Sequential:
    """Return a 1x1 convolution to a quarter of the channels, a 3x3 one, and a 1x1 one to all of them.

    Args:
        out_channels: a multiple of four.

    Paper: He et al. 2016, figure 5, right. Departs from the paper: the 3x3 convolution has the stride, not
    the first one, as in all published weights of today ("version 1.5").
    """
    hidden = out_channels // EXPANSION
    return nn.Sequential(
        NormedConvolution(in_channels, hidden, 1, norm=norm),
        NormedConvolution(hidden, hidden, 3, stride=stride, dilation=dilation, norm=norm),
        NormedConvolution(hidden, out_channels, 1, norm=norm, activation=None),
    )


def make_shortcut(in_channels: int, out_channels: int, *, stride: int, norm: NormFactory) -> nn.Module:
    """Return a 1x1 convolution where channels or size change, else identity.

    Paper: He et al. 2016, section 3.3, option B.
    """
    if stride == 1 and in_channels == out_channels:
        return nn.Identity()
    return NormedConvolution(in_channels, out_channels, 1, stride=stride, norm=norm, activation=None)


VARIANTS: dict[str, ModelConfig] = {
    "resnet18": ResNetConfig(block="basic", depths=(2, 2, 2, 2)),  # He et al. 2016, table 1
    "resnet34": ResNetConfig(block="basic", depths=(3, 4, 6, 3)),  # He et al. 2016, table 1
    "resnet50": ResNetConfig(depths=(3, 4, 6, 3)),  # He et al. 2016, table 1
    "resnet101": ResNetConfig(depths=(3, 4, 23, 3)),  # He et al. 2016, table 1
    "resnet152": ResNetConfig(depths=(3, 8, 36, 3)),  # He et al. 2016, table 1
}


def _build_stage(config: ResNetConfig, stage: int) -> nn.Sequential:
    make_branch = make_bottleneck_branch if config.block == "bottleneck" else make_basic_branch
    rates = drop_path_stages(config.drop_path, config.depths)[stage]
    is_dilated = config.dilated and stage == len(config.depths) - 1
    before_first = config.width if stage == 0 else config.channels[stage - 1]
    widths = (before_first, *[config.channels[stage]] * config.depths[stage])
    blocks = []
    for index, (before, after) in enumerate(pairwise(widths)):
        stride = 2 if stage > 0 and index == 0 and not is_dilated else 1
        # The strided block's 3x3 convolution is not dilated, as in DETR's backbone.
        dilation = 2 if is_dilated and index > 0 else 1
        block = ResidualBlock(
            branch=make_branch(before, after, stride=stride, dilation=dilation, norm=_norm(config)),
            shortcut=make_shortcut(before, after, stride=stride, norm=_norm(config)),
            drop_path=rates[index],
            overwrites=index > 0,  # a stage's input may be read by others
        )
        if config.zero_branches:
            block.zero_branch()
        blocks.append(block)
    return nn.Sequential(*blocks)


def _norm(config: ResNetConfig) -> NormFactory:
    return partial(FrozenBatchNorm if config.norm == "frozen" else nn.BatchNorm2d, eps=config.norm_eps)
