"""Big Transfer (BiT): wide pre-activation ResNets with group norm and weight standardisation.

Paper: Kolesnikov et al. 2020. Input: any height and width.
"""

from __future__ import annotations

from itertools import pairwise
from typing import ClassVar, Self

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import nn

from vitrail.models.contract import ImageModelConfig, ModelConfig
from vitrail.models.pyramid import Pyramid
from vitrail.nn.blocks import DropPath, drop_path_stages
from vitrail.nn.convolution import StandardisedConvolution
from vitrail.nn.tokens import FeatureMap, Images, InputMap

NUM_GROUPS = 32  # Kolesnikov et al. 2020, published code; also Wu and He 2018, section 4.1


class BiTConfig(ImageModelConfig):
    """Settings of a Big Transfer network."""

    family: ClassVar[str] = "bit"
    paper: ClassVar[str] = "Kolesnikov et al. 2020"
    position_policy: ClassVar[str] = "none; the convolutions see their surroundings"
    size_policy: ClassVar[str] = "each convolution is padded with zeros, so every size divides"

    width: int = Field(default=64, ge=1)
    """Channels of the stem, and a quarter of the first stage's; each further stage doubles them."""
    depths: tuple[int, ...] = (3, 4, 6, 3)
    """Number of blocks in each stage; each stage but the first halves rows and columns."""
    drop_path: float = Field(default=0.0, ge=0, lt=1)
    """Stochastic-depth rate of the last block, linear from 0."""

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if not self.depths or min(self.depths) < 1:
            raise ValueError(f"depths {self.depths} need at least one block in each stage")
        if self.width % NUM_GROUPS:
            raise ValueError(f"the norms' {NUM_GROUPS} groups do not divide width {self.width}")
        return self

    @property
    def channels(self) -> tuple[int, ...]:
        return tuple(4 * self.width * 2**stage for stage in range(len(self.depths)))

    def build(self) -> BiT:
        return BiT(self)


class BiT(Pyramid):
    """A stem, stages of pre-activation blocks, group norm and ReLU, and a linear layer on the mean.

    Paper: Kolesnikov et al. 2020, section 3.2.
    """

    def __init__(self, config: BiTConfig) -> None:
        super().__init__()
        self.config = config
        head = nn.Linear(config.channels[-1], config.num_classes)
        nn.init.normal_(head.weight, std=0.01)
        nn.init.zeros_(head.bias)
        self.stem = StandardisedStem(config.num_channels, config.width)
        self.stages = nn.ModuleList(_build_stage(config, stage) for stage in range(len(config.depths)))
        self.final = GroupNormReLU(config.channels[-1])
        self.head = head  # drawn first, used last


class GroupNormReLU(nn.Module):
    """Group norm and ReLU.

    Paper: Wu and He 2018, equation 7.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(NUM_GROUPS, channels)

    def forward(self, x: FeatureMap) -> FeatureMap:
        return F.relu_(self.norm(x))


class PreActivationBottleneck(nn.Module):
    """``shortcut + conv(act(conv(act(conv(act(x))))))`` of 1x1, 3x3, 1x1 convolutions; ``act`` has the norm.

    Args:
        out_channels: a multiple of four groups.
        stride: of the 3x3 convolution and the shortcut.
        projects: whether the shortcut is a 1x1 convolution of ``act(x)`` instead of ``x`` itself.

    Paper: He et al. 2016b (identity mappings), figure 4 (e). Departs from the paper: the 3x3 convolution has
    the stride, as in Kolesnikov et al. 2020.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        stride: int = 1,
        projects: bool = False,
        drop_path: float = 0.0,
    ) -> None:
        super().__init__()
        hidden = out_channels // 4
        self.activation = GroupNormReLU(in_channels)
        self.shortcut = (
            StandardisedConvolution(in_channels, out_channels, 1, stride=stride) if projects else None
        )
        self.branch = nn.Sequential(
            StandardisedConvolution(in_channels, hidden, 1),
            GroupNormReLU(hidden),
            StandardisedConvolution(hidden, hidden, 3, stride=stride),
            GroupNormReLU(hidden),
            StandardisedConvolution(hidden, out_channels, 1),
        )
        self.drop_path = DropPath(drop_path)

    def forward(self, x: InputMap) -> FeatureMap:
        activated = self.activation(x)
        shortcut = x if self.shortcut is None else self.shortcut(activated)
        return self.drop_path(self.branch(activated)).add_(shortcut)


class StandardisedStem(nn.Module):
    """A 7x7 convolution and a 3x3 max-pooling, each with stride two, without norm.

    Paper: Kolesnikov et al. 2020, published code. Departs from He et al. 2016: the maximum is taken over
    zeros at the borders too, so that it is not negative there.
    """

    def __init__(self, in_channels: int, channels: int) -> None:
        super().__init__()
        self.first = StandardisedConvolution(in_channels, channels, 7, stride=2)

    def forward(self, images: Images) -> FeatureMap:
        """Return a feature map in channels-last memory, of a quarter of the height and width, rounded up."""
        x = self.first(images.contiguous(memory_format=torch.channels_last))
        return F.max_pool2d(F.pad(x, (1, 1, 1, 1)), kernel_size=3, stride=2)


# Kolesnikov et al. 2020, section 3.2 and table 5; R152x2: the published code's list of weights.
VARIANTS: dict[str, ModelConfig] = {
    "bit_r50x1": BiTConfig(),
    "bit_r50x3": BiTConfig(width=192),
    "bit_r101x1": BiTConfig(depths=(3, 4, 23, 3)),
    "bit_r101x3": BiTConfig(depths=(3, 4, 23, 3), width=192),
    "bit_r152x2": BiTConfig(depths=(3, 8, 36, 3), width=128),
    "bit_r152x4": BiTConfig(depths=(3, 8, 36, 3), width=256),
}


def _build_stage(config: BiTConfig, stage: int) -> nn.Sequential:
    rates = drop_path_stages(config.drop_path, config.depths)[stage]
    before_first = config.width if stage == 0 else config.channels[stage - 1]
    widths = (before_first, *[config.channels[stage]] * config.depths[stage])
    return nn.Sequential(
        *(
            PreActivationBottleneck(
                before,
                after,
                stride=2 if stage > 0 and index == 0 else 1,
                projects=index == 0,
                drop_path=rates[index],
            )
            for index, (before, after) in enumerate(pairwise(widths))
        )
    )
