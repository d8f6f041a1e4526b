"""Convolutions with a norm of their result or of their kernel.

Feature maps are batch, channels, rows, columns; they stay in channels-last memory if they come in it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.nn.tokens import FeatureMap, InputMap

KERNEL_EPS = 1e-8  # Kolesnikov et al. 2020; 1e-10 in their code, 1e-8 in both libraries of its weights

Activation = Callable[[Tensor], Tensor]
Padding = Literal["symmetric", "same"]


class FrozenBatchNorm(nn.Module):
    """Batch norm with fixed statistics, scale and shift: all four are buffers.

    Paper: Carion et al. 2020 (DETR), appendix A.4, "backbone".
    """

    weight: Tensor
    bias: Tensor
    running_mean: Tensor
    running_var: Tensor

    def __init__(self, channels: int, *, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.register_buffer("weight", torch.ones(channels))
        self.register_buffer("bias", torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def forward(self, x: FeatureMap) -> FeatureMap:
        return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)


def freeze_batch_norm(model: nn.Module) -> None:
    """Replace the batch norms within a model by frozen ones of the same values."""
    for parent in list(model.modules()):
        for name, norm in parent.named_children():
            if isinstance(norm, nn.BatchNorm2d):
                frozen = FrozenBatchNorm(norm.num_features, eps=norm.eps)
                frozen.load_state_dict(norm.state_dict(), strict=False)  # all but the count of batches
                setattr(parent, name, frozen)


Norm = nn.BatchNorm2d | FrozenBatchNorm
NormFactory = Callable[[int], Norm]


class ChannelLayerNorm(nn.Module):
    """Layer norm over the channels of a feature map (Ba et al. 2016)."""

    def __init__(self, channels: int, *, eps: float = 1e-6) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(channels, eps=eps)

    def forward(self, x: FeatureMap) -> FeatureMap:
        """Needs no copy in channels-last memory."""
        return self.norm(x.movedim(1, -1)).movedim(-1, 1)


class NormedConvolution(nn.Module):
    """Convolution, batch norm, activation.

    The kernel is stored with its input channels last, as channels-last convolutions read it.

    Args:
        kernel_size: odd.
        norm: from a number of channels to a batch norm with stored statistics or a ``FrozenBatchNorm``.
        activation: None for no activation.
        padding: zeros around the feature map: equally many on both sides, or ``same``, as ``pad_same``.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        *,
        stride: int = 1,
        dilation: int = 1,
        groups: int = 1,
        norm: NormFactory = nn.BatchNorm2d,
        activation: Activation | None = F.relu,
        padding: Padding = "symmetric",
    ) -> None:
        super().__init__()
        self.stride, self.dilation, self.groups = stride, dilation, groups
        self.activation = activation
        self.pads_by_size = padding == "same" and stride > 1  # at stride one, both paddings are the same
        self.padding = 0 if self.pads_by_size else dilation * (kernel_size // 2)
        self.weight = make_kernel(in_channels // groups, out_channels, kernel_size, groups=groups)
        self.norm = norm(out_channels)

    def forward(self, x: InputMap) -> FeatureMap:
        if self.pads_by_size:
            x = pad_same(x, self.weight.shape[1], self.stride)
        kernel, x = self.weight.permute(0, 3, 1, 2), widen_to_stride(x, self.stride)
        x = self.norm(F.conv2d(x, kernel, None, self.stride, self.padding, self.dilation, self.groups))
        return x if self.activation is None else self.activation(x)

    def extra_repr(self) -> str:
        return f"{tuple(self.weight.shape)}, stride={self.stride}, groups={self.groups}"


class StandardisedConvolution(nn.Module):
    """Convolution with weight standardisation: each output channel's kernel has mean zero and variance one.

    The kernel is stored with its input channels last, as channels-last convolutions read it.

    Paper: Qiao et al. 2019 (weight standardisation), equations 3 to 5.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        *,
        stride: int = 1,
        padding: Padding = "symmetric",
    ) -> None:
        super().__init__()
        self.stride, self.pads_by_size = stride, padding == "same" and stride > 1
        self.padding = 0 if self.pads_by_size else kernel_size // 2
        self.weight = make_kernel(in_channels, out_channels, kernel_size)

    def forward(self, x: InputMap) -> FeatureMap:
        weight = F.layer_norm(self.weight, self.weight.shape[1:], eps=KERNEL_EPS)
        if self.pads_by_size:
            x = pad_same(x, self.weight.shape[1], self.stride)
        x = widen_to_stride(x, self.stride)
        return F.conv2d(x, weight.permute(0, 3, 1, 2), stride=self.stride, padding=self.padding)


def make_kernel(in_channels: int, out_channels: int, kernel_size: int, *, groups: int = 1) -> nn.Parameter:
    """Return a kernel (out_channels, rows, columns, in_channels) with variance 2 / fan-out.

    Paper: He et al. 2015, equation 14.
    """
    weight = torch.empty(out_channels, kernel_size, kernel_size, in_channels)
    fan_out = kernel_size**2 * out_channels // groups  # outputs that read one input value
    return nn.Parameter(nn.init.normal_(weight, std=(2 / fan_out) ** 0.5))


def widen_to_stride(
    x: Float[Tensor, "batch channels rows columns"], stride: int
) -> Float[Tensor, "batch channels rows widened_columns"]:
    """Zero-pad on the right a feature map that is narrower than the stride of the convolution that reads it.

    The result of a convolution that pads by half its kernel stays the same. Without it, oneDNN leaves parts
    of the kernel's bfloat16 gradient unset, so that they hold whatever was in memory (torch 2.13 on a CPU,
    a 3x3 kernel with stride two over a feature map of one column).
    """
    return F.pad(x, (0, stride - x.shape[-1])) if x.shape[-1] < stride else x


def pad_same(
    x: Float[Tensor, "batch channels rows columns"], kernel_size: int, stride: int
) -> Float[Tensor, "batch channels padded_rows padded_columns"]:
    """Pad with zeros so that the output has one position for each ``stride`` input positions, rounded up.

    An odd number of zeros puts the greater half below and to the right: the rule of the library in which
    EfficientNet was published, where the padding depends on the size of the map.
    """
    missing = [max((-(-size // stride) - 1) * stride + kernel_size - size, 0) for size in x.shape[-2:]]
    (above, left), (below, right) = ([each // 2 for each in missing], [-(-each // 2) for each in missing])
    return F.pad(x, (left, right, above, below)) if any(missing) else x
