"""Convolutions fused with their norm, activation and residual sum when the norm's statistics are fixed.

Feature maps are batch, channels, rows, columns; they stay in channels-last memory if they come in it.
"""

from __future__ import annotations

from typing import Self

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.engines.cpu.elementwise import silu
from vitrail.models.efficientnet import SqueezeExcite
from vitrail.models.resnet import ResidualBlock
from vitrail.nn.convolution import Activation, Norm, NormedConvolution, pad_same, widen_to_stride

# Folding a norm costs about as much as normalising the feature maps of a batch of this size: it reads and
# writes the kernel, which comes from memory, while a small feature map is still in the cache.
NOMINAL_BATCH = 4
Maps = Float[Tensor, "batch in_channels rows_in columns_in"]
NewMaps = Float[Tensor, "batch out_channels rows columns"]
_OVERWRITING: dict[Activation, Activation] = {F.relu: F.relu_, F.silu: silu}


class FastNormedConvolution(NormedConvolution):
    """Convolution, batch norm and activation in as few passes as possible.

    With stored statistics (evaluation mode or a frozen norm), the norm is a scale and shift per channel.
    Where the kernel is small beside the feature map, the scale is folded in: ``norm(kernel * x) = (scale
    kernel) * x + shift``. Gradients flow through the product as before; without gradients, ReLU and the
    residual sum are fused into the convolution.
    """

    settled_weight: Tensor | None
    """The kernel with the norm folded in, after ``settle``."""
    settled_shift: Tensor | None

    def settle(self) -> None:
        """Fold the norm once, for a copy of a model that is used for inference only.

        Takes the memory of another kernel; ``train`` undoes it.
        """
        assert not self._takes_batch_statistics(), "the statistics of the norm still change"
        with torch.no_grad():
            self.settled_weight, self.settled_shift = self._fold_norm()

    def train(self, mode: bool = True) -> Self:
        """In training mode, the kernel is folded anew at each call."""
        if mode:
            self.settled_weight = self.settled_shift = None
        return super().train(mode)

    def forward(self, x: Maps) -> NewMaps:
        if self.pads_by_size:
            x = pad_same(x, self.weight.shape[1], self.stride)
        if self._takes_batch_statistics():
            x = self.norm(self._convolve(x, self.weight, None))
        elif self._has_small_kernel(x):
            if self.activation is F.relu and _fused_type(x, self.weight) is not None:
                return self._convolve_fused(x, None)
            x = self._convolve(x, *self._fold_norm())
        elif self.weight.shape[1] == 1 and self.groups == 1 and _multiplies_float32(x):
            # A matrix product reads a large kernel as it lies; a convolution would rearrange it first. In
            # bfloat16 it was the slower of the two (docs/log.md).
            positions = x[:, :, :: self.stride, :: self.stride].movedim(1, -1)
            x = self.norm(F.linear(positions, self.weight.flatten(1)).movedim(-1, 1))
        else:
            x = self.norm(self._convolve(x, self.weight, None))
        return x if self.activation is None else _OVERWRITING.get(self.activation, self.activation)(x)

    def add_rectified(self, x: Maps, residual: NewMaps, *, overwrites: bool = False) -> NewMaps:
        """Return ``relu(norm(kernel * x) + residual)``, the end of a residual block without another
        activation.

        Args:
            overwrites: whether the result may overwrite the residual, as oneDNN's fused operation does.
        """
        assert self.activation is None, "the sum is activated, not what is added"
        assert not self.pads_by_size, "a branch that ends with padding of its own"
        is_settled = not self._takes_batch_statistics() and self._has_small_kernel(x)
        if is_settled and _fused_type(x, self.weight) is not None:
            return self._convolve_fused(x, residual, overwrites=overwrites)
        return F.relu_(self(x).add_(residual))

    def _takes_batch_statistics(self) -> bool:
        return self.norm.training and isinstance(self.norm, nn.BatchNorm2d)

    def _fold_norm(self) -> tuple[Tensor, Tensor]:
        if self.settled_weight is not None and self.settled_shift is not None:
            return self.settled_weight, self.settled_shift
        scale, shift = norm_as_affine(self.norm)
        weight = self.weight * scale.to(self.weight.dtype)[:, None, None, None]
        return weight, shift.to(weight.dtype)

    def _has_small_kernel(self, x: Tensor) -> bool:
        """Tell whether scaling the kernel costs less than normalising the feature map, whatever the batch.

        An exported graph holds the scaled kernel, which costs nothing.
        """
        if torch.compiler.is_exporting() or self.settled_weight is not None:
            return True
        positions = x.shape[-2] * x.shape[-1] // self.stride**2
        return positions * NOMINAL_BATCH >= self.weight[0].numel()

    def _convolve(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        kernel = weight.permute(0, 3, 1, 2)
        x = widen_to_stride(x, self.stride)
        return F.conv2d(x, kernel, bias, self.stride, self.padding, self.dilation, self.groups)

    def _convolve_fused(self, x: Tensor, residual: Tensor | None, *, overwrites: bool = False) -> Tensor:
        """Convolution, shift, residual sum and ReLU in one pass over the feature map."""
        dtype = _fused_type(x, self.weight)
        weight, shift = (each.to(dtype) for each in self._fold_norm())
        x = widen_to_stride(x.to(dtype), self.stride)
        sizes = [[length] * 2 for length in (self.padding, self.stride, self.dilation)]
        kernel = weight.permute(0, 3, 1, 2)
        if residual is None:
            fused = torch.ops.mkldnn._convolution_pointwise
            return fused(x, kernel, shift, *sizes, self.groups, "relu", [], "")
        residual = residual.to(dtype)
        how = (kernel, shift, *sizes, self.groups, "add", 1.0, "relu", [], "")
        if overwrites and residual.is_contiguous(memory_format=torch.channels_last):
            return torch.ops.mkldnn._convolution_pointwise_.binary(residual, x, *how)
        return torch.ops.mkldnn._convolution_pointwise.binary(x, residual, *how)


class FastResidualBlock(ResidualBlock):
    """``relu(shortcut(x) + branch(x))``, with the sum fused into the branch's last convolution."""

    def forward(self, x: Maps) -> NewMaps:
        *first, last = self.branch
        if self.drop_path.is_idle and isinstance(last, FastNormedConvolution):
            hidden = x
            for layer in first:
                hidden = layer(hidden)
            # A new map is nobody else's; an old one may be kept by what recomputes the block in training.
            overwrites = not isinstance(self.shortcut, nn.Identity) or (self.overwrites and not self.training)
            return last.add_rectified(hidden, self.shortcut(x), overwrites=overwrites)
        return F.relu_(self.drop_path(self.branch(x)).add_(self.shortcut(x)))


class FastSqueezeExcite(SqueezeExcite):
    """Squeeze-and-excitation that scales channels in place when no gradient is needed."""

    def forward(
        self, x: Float[Tensor, "batch channels rows columns"]
    ) -> Float[Tensor, "batch channels rows columns"]:
        factors = torch.sigmoid(self.expand(silu(self.reduce(x.mean(dim=(2, 3))))))[..., None, None]
        return x * factors if torch.is_grad_enabled() else x.mul_(factors)


def settle_norms(model: nn.Module) -> None:
    """Fold every norm of an accelerated model in evaluation mode into its kernel, in place; see
    ``settle``."""
    for module in model.modules():
        if isinstance(module, FastNormedConvolution):
            module.settle()


def _multiplies_float32(x: Tensor) -> bool:
    device = x.device.type
    casts = torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
    return x.dtype == torch.float32 and not casts


def _fused_type(x: Tensor, weight: Tensor) -> torch.dtype | None:
    """Return the type in which oneDNN fuses convolution and ReLU here, or None.

    Its operations do not work under autocast, with gradients or in graphs.
    """
    if torch.is_grad_enabled() or x.device.type != "cpu" or torch.compiler.is_compiling():
        return None
    casts = torch.is_autocast_enabled("cpu")
    if not torch.backends.mkldnn.is_available() or not (casts or weight.dtype == x.dtype):
        return None
    dtype = torch.get_autocast_dtype("cpu") if casts else x.dtype
    is_narrow = dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return dtype if dtype == torch.float32 or is_narrow else None


def norm_as_affine(norm: Norm) -> tuple[Float[Tensor, " channels"], Float[Tensor, " channels"]]:
    """Return scale and shift, in float32 or wider, of a norm with stored statistics."""
    assert norm.running_mean is not None, "the norm keeps no statistics"
    assert norm.running_var is not None, "the norm keeps no statistics"
    wide = torch.promote_types(norm.weight.dtype, torch.float32)
    scale = norm.weight.to(wide) * torch.rsqrt(norm.running_var.to(wide) + norm.eps)
    return scale, norm.bias.to(wide) - norm.running_mean.to(wide) * scale
