"""Pixels to patches and back, grids to windows and back, and patch embeddings."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.nn.linear import Linear


def split_patches(
    images: Float[Tensor, "batch channels height width"], patch_size: tuple[int, int]
) -> Float[Tensor, "batch patches pixels"]:
    """Cut images into patches, row by row; a patch's values are ordered channel, row, column.

    Args:
        images: height and width are multiples of the patch's.
    """
    rows, columns = images.shape[-2] // patch_size[0], images.shape[-1] // patch_size[1]
    cells = images.reshape(*images.shape[:2], rows, patch_size[0], columns, patch_size[1])
    return cells.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)  # batch patches pixels


def join_patches(
    patches: Float[Tensor, "batch patches pixels"], grid: tuple[int, int], patch_size: tuple[int, int]
) -> Float[Tensor, "batch channels height width"]:
    """Undo ``split_patches``."""
    cells = patches.reshape(patches.shape[0], *grid, -1, *patch_size)  # b rows columns c y x
    return cells.permute(0, 3, 1, 4, 2, 5).flatten(4).flatten(2, 3)  # b c height width


def split_windows(
    x: Float[Tensor, "batch rows columns dim"], window: tuple[int, int]
) -> Float[Tensor, "windows tokens dim"]:
    """Cut a grid of tokens into windows, which become the batch; row by row within an image.

    Args:
        x: rows and columns are multiples of the window's.
    """
    rows, columns = x.shape[1] // window[0], x.shape[2] // window[1]
    cells = x.reshape(x.shape[0], rows, window[0], columns, window[1], x.shape[-1])
    return cells.transpose(2, 3).flatten(3, 4).flatten(0, 2)  # windows tokens dim


def join_windows(
    windows: Float[Tensor, "windows tokens dim"], grid: tuple[int, int], window: tuple[int, int]
) -> Float[Tensor, "batch rows columns dim"]:
    """Undo ``split_windows``; ``grid`` is the rows and columns of one image."""
    rows, columns = grid[0] // window[0], grid[1] // window[1]
    cells = windows.reshape(-1, rows, columns, *window, windows.shape[-1])  # b r c y x d
    return cells.transpose(2, 3).flatten(3, 4).flatten(1, 2)  # b rows columns d


def pad_to_multiple(
    images: Float[Tensor, "batch channels height width"], multiple: tuple[int, int]
) -> Float[Tensor, "batch channels padded_height padded_width"]:
    """Zero-pad below and to the right until height and width are multiples of the given ones."""
    below, right = -images.shape[-2] % multiple[0], -images.shape[-1] % multiple[1]
    return F.pad(images, (0, right, 0, below)) if below or right else images


def widen_to_stride(
    x: Float[Tensor, "batch channels rows columns"], stride: int
) -> Float[Tensor, "batch channels rows widened_columns"]:
    """Zero-pad on the right a feature map that is narrower than the stride of the convolution that reads it.

    The result of a convolution that pads by half its kernel stays the same. Without it, oneDNN leaves parts
    of the kernel's bfloat16 gradient unset, so that they hold whatever was in memory (torch 2.13 on a CPU,
    a 3x3 kernel with stride two over a feature map of one column).
    """
    return F.pad(x, (0, stride - x.shape[-1])) if x.shape[-1] < stride else x


class PatchEmbed(nn.Module):
    """Linear patch embedding; the weight has the shape of the equivalent convolution's.

    Args:
        bias: CLIP's has none.

    Paper: Dosovitskiy et al. 2021, equation 1.
    """

    linear = staticmethod(F.linear)

    def __init__(self, in_channels: int, dim: int, *, patch_size: int, bias: bool = True) -> None:
        super().__init__()
        self.patch_size = patch_size
        self.weight = nn.Parameter(torch.empty(dim, in_channels, patch_size, patch_size))
        self.bias = nn.Parameter(torch.zeros(dim)) if bias else None
        fan_in = in_channels * patch_size**2
        nn.init.trunc_normal_(self.weight, std=fan_in**-0.5)  # LeCun, as the published ViT code

    def forward(
        self, images: Float[Tensor, "batch channels height width"]
    ) -> Float[Tensor, "batch dim rows columns"]:
        """Return one position per patch; images are zero-padded to whole patches."""
        size = (self.patch_size, self.patch_size)
        images = pad_to_multiple(images, size)
        grid = (images.shape[-2] // self.patch_size, images.shape[-1] // self.patch_size)
        tokens = self.linear(split_patches(images, size), self.weight.flatten(1), self.bias)
        return tokens.transpose(1, 2).reshape(tokens.shape[0], -1, *grid)  # batch dim rows columns


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

    def forward(
        self, images: Float[Tensor, "batch channels height width"]
    ) -> Float[Tensor, "batch dim rows columns"]:
        cells = self.activation(self.hidden(images)).movedim(1, -1)  # b rows columns d
        return self.projection(cells).movedim(-1, 1)


class ChannelLayerNorm(nn.Module):
    """Layer norm over the channels of a feature map (Ba et al. 2016)."""

    def __init__(self, channels: int, *, eps: float = 1e-6) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(channels, eps=eps)

    def forward(
        self, x: Float[Tensor, "batch channels rows columns"]
    ) -> Float[Tensor, "batch channels rows columns"]:
        """Needs no copy in channels-last memory."""
        return self.norm(x.movedim(1, -1)).movedim(-1, 1)


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

    def forward(
        self, x: Float[Tensor, "batch channels rows columns"]
    ) -> Float[Tensor, "batch channels rows columns"]:
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

    def forward(
        self, images: Float[Tensor, "batch channels height width"]
    ) -> Float[Tensor, "batch dim rows columns"]:
        images = pad_to_multiple(images, (self.patch_size, self.patch_size))
        return self.projection(self.layers(images.contiguous(memory_format=torch.channels_last)))


def _convolution(before: int, after: int, *, stride: int = 1) -> nn.Conv2d:
    convolution = nn.Conv2d(before, after, 3, stride=stride, padding=1, bias=False)
    nn.init.kaiming_normal_(convolution.weight, mode="fan_out")  # He et al. 2015
    return convolution
