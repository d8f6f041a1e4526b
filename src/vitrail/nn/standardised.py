"""Weight-standardised convolutions, and pre-activation residual blocks with group norm (BiT)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.nn.blocks import DropPath
from vitrail.nn.convolution import make_kernel
from vitrail.nn.patches import widen_to_stride

NUM_GROUPS = 32  # Kolesnikov et al. 2020, published code; also Wu and He 2018, section 4.1
KERNEL_EPS = (
    1e-8  # Kolesnikov et al. 2020, published code: 1e-10 there, 1e-8 in both libraries of its weights
)


class StandardisedConvolution(nn.Module):
    """Convolution with weight standardisation: each output channel's kernel has mean zero and variance one.

    The kernel is stored with its input channels last, as channels-last convolutions read it.

    Paper: Qiao et al. 2019 (weight standardisation), equations 3 to 5.
    """

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int, *, stride: int = 1) -> None:
        super().__init__()
        self.stride, self.padding = stride, kernel_size // 2
        self.weight = make_kernel(in_channels, out_channels, kernel_size)

    def forward(
        self, x: Float[Tensor, "batch in_channels rows_in columns_in"]
    ) -> Float[Tensor, "batch out_channels rows columns"]:
        weight = F.layer_norm(self.weight, self.weight.shape[1:], eps=KERNEL_EPS)
        x = widen_to_stride(x, self.stride)
        return F.conv2d(x, weight.permute(0, 3, 1, 2), stride=self.stride, padding=self.padding)


class GroupNormReLU(nn.Module):
    """Group norm and ReLU.

    Args:
        channels: a multiple of the number of groups.

    Paper: Wu and He 2018, equation 7.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(NUM_GROUPS, channels)

    def forward(
        self, x: Float[Tensor, "batch channels rows columns"]
    ) -> Float[Tensor, "batch channels rows columns"]:
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

    def forward(
        self, x: Float[Tensor, "batch in_channels rows_in columns_in"]
    ) -> Float[Tensor, "batch out_channels rows columns"]:
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

    def forward(
        self, images: Float[Tensor, "batch in_channels height width"]
    ) -> Float[Tensor, "batch channels rows columns"]:
        """Return a feature map in channels-last memory, of a quarter of the height and width, rounded up."""
        x = self.first(images.contiguous(memory_format=torch.channels_last))
        return F.max_pool2d(F.pad(x, (1, 1, 1, 1)), kernel_size=3, stride=2)
