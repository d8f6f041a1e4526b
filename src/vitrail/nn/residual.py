"""ResNet blocks with batch norm, and the stem in front of them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.nn.blocks import DropPath
from vitrail.nn.convolution import NormedConvolution, NormFactory

EXPANSION = 4  # He et al. 2016, table 1: a bottleneck's last convolution is four times as wide


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
        self,
        *,
        branch: nn.Sequential,
        shortcut: nn.Module,
        drop_path: float = 0.0,
        overwrites: bool = False,
    ) -> None:
        super().__init__()
        self.branch = branch
        self.shortcut = shortcut
        self.drop_path = DropPath(drop_path)
        self.overwrites = overwrites

    def forward(
        self, x: Float[Tensor, "batch in_channels rows_in columns_in"]
    ) -> Float[Tensor, "batch out_channels rows columns"]:
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

    def forward(
        self, images: Float[Tensor, "batch in_channels height width"]
    ) -> Float[Tensor, "batch channels rows columns"]:
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
