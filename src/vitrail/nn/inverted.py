"""Inverted residual blocks (MBConv) with squeeze-and-excitation."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.nn.blocks import DropPath
from vitrail.nn.convolution import NormedConvolution, NormFactory, Padding

SQUEEZE = 4  # Tan and Le 2019, published code: a quarter of the block's input channels


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

    def forward(
        self, x: Float[Tensor, "batch channels rows columns"]
    ) -> Float[Tensor, "batch channels rows columns"]:
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

    def forward(
        self, x: Float[Tensor, "batch in_channels rows_in columns_in"]
    ) -> Float[Tensor, "batch out_channels rows columns"]:
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

    def forward(
        self, images: Float[Tensor, "batch in_channels height width"]
    ) -> Float[Tensor, "batch channels rows columns"]:
        """Return a feature map in channels-last memory, of half the height and width, rounded up."""
        return self.first(images.contiguous(memory_format=torch.channels_last))
