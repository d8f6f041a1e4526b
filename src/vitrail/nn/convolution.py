"""Convolutions with a norm and an activation, which become one operation where the statistics stand still.

Maps are batch, channels, rows, columns; they stay in channels-last memory if they come in it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

Activation = Callable[[Tensor], Tensor]
Padding = Literal["symmetric", "same"]


class FrozenBatchNorm(nn.Module):
    """Batch norm whose statistics, factors and offsets never change: all four are buffers.

    Args:
        channels: channels of the map.
        eps: added to the variance.

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

    def forward(
        self, x: Float[Tensor, "batch channels rows columns"]
    ) -> Float[Tensor, "batch channels rows columns"]:
        """Return the map normalised by the stored statistics."""
        scale, shift = norm_as_affine(self)
        return x * scale.to(x.dtype)[:, None, None] + shift.to(x.dtype)[:, None, None]


Norm = nn.BatchNorm2d | FrozenBatchNorm
NormFactory = Callable[[int], Norm]


class NormedConvolution(nn.Module):
    """Convolve, normalise each channel over the batch, activate.

    Where the norm uses stored statistics, that is in evaluation mode or with a frozen norm, it is a factor
    and an offset for each channel. They are multiplied into the kernel, which is far smaller than the map:
    ``norm(kernel * x) = (scale kernel) * x + shift``. Gradients flow through the product as before.

    Args:
        in_channels: channels of the map.
        out_channels: channels of the result.
        kernel_size: rows, and columns, of the kernel; odd.
        stride: cells between neighbouring windows.
        dilation: cells between neighbouring values of a window.
        groups: parts of the channels that are convolved by themselves.
        norm: makes, from a number of channels, a batch norm with stored statistics or a ``FrozenBatchNorm``.
        activation: of the normalised values; it may overwrite them. None leaves it out.
        padding: zeros around the map: equally many on both sides, or ``same``, as many as ``pad_same`` adds.
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
        activation: Activation | None = F.relu_,
        padding: Padding = "symmetric",
    ) -> None:
        super().__init__()
        self.activation, self.padding = activation, padding
        self.convolution = nn.Conv2d(
            in_channels,
            out_channels,
            kernel_size,
            stride=stride,
            # With stride one, both kinds of padding are the same.
            padding=dilation * (kernel_size // 2) if padding == "symmetric" or stride == 1 else 0,
            dilation=dilation,
            groups=groups,
            bias=False,
        )
        self.norm = norm(out_channels)
        initialise_by_fan_out(self.convolution)

    def forward(
        self, x: Float[Tensor, "batch in_channels rows_in columns_in"]
    ) -> Float[Tensor, "batch out_channels rows columns"]:
        """Return the new map."""
        convolution = self.convolution
        if self.padding == "same" and convolution.stride[0] > 1:
            x = pad_same(x, convolution.kernel_size[0], convolution.stride[0])
        if self.norm.training and isinstance(self.norm, nn.BatchNorm2d):
            x = self.norm(convolution(x))
        else:
            scale, shift = norm_as_affine(self.norm)
            kernel = convolution.weight * scale.to(convolution.weight.dtype)[:, None, None, None]
            x = F.conv2d(
                x,
                kernel,
                shift.to(kernel.dtype),
                convolution.stride,
                convolution.padding,
                convolution.dilation,
                convolution.groups,
            )
        return x if self.activation is None else self.activation(x)


def norm_as_affine(norm: Norm) -> tuple[Float[Tensor, " channels"], Float[Tensor, " channels"]]:
    """Return the factor and the offset, in float32 or wider, by which a norm with stored statistics acts."""
    assert norm.running_mean is not None, "the norm keeps no statistics"
    assert norm.running_var is not None, "the norm keeps no statistics"
    wide = torch.promote_types(norm.weight.dtype, torch.float32)
    scale = norm.weight.to(wide) * torch.rsqrt(norm.running_var.to(wide) + norm.eps)
    return scale, norm.bias.to(wide) - norm.running_mean.to(wide) * scale


def pad_same(
    x: Float[Tensor, "batch channels rows columns"], kernel_size: int, stride: int
) -> Float[Tensor, "batch channels padded_rows padded_columns"]:
    """Add zeros so that there is one window for each ``stride`` cells that began, and no window more.

    An odd number of zeros puts the greater half below and to the right: the rule of the library in which
    EfficientNet was published, where the padding depends on the size of the map.

    Args:
        x: the map.
        kernel_size: rows, and columns, of a window.
        stride: cells between neighbouring windows.
    """
    missing = [max((-(-size // stride) - 1) * stride + kernel_size - size, 0) for size in x.shape[-2:]]
    (above, left), (below, right) = ([each // 2 for each in missing], [-(-each // 2) for each in missing])
    return F.pad(x, (left, right, above, below)) if any(missing) else x


def silu(x: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch dim"]:
    """Return ``x sigmoid(x)``, in the memory of ``x`` where no gradient will ask for the values there.

    Paper: Elfwing et al. 2018; Ramachandran et al. 2018 ("Swish"), with beta one.
    """
    return F.silu(x, inplace=not torch.is_grad_enabled())


def initialise_by_fan_out(convolution: nn.Conv2d) -> None:
    """Draw a kernel from a normal distribution of variance two over the values that read one input value.

    Paper: He et al. 2015, equation 14.
    """
    rows, columns = convolution.kernel_size
    fan_out = rows * columns * convolution.out_channels // convolution.groups
    nn.init.normal_(convolution.weight, std=(2 / fan_out) ** 0.5)
