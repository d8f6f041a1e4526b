"""Pixels to patches and back, grids to windows and back, patch embedding and patch merging."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.nn.linear import Linear
from vitrail.nn.tokens import FeatureMap, Images


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

    def forward(self, images: Images) -> FeatureMap:
        """Return one position per patch; images are zero-padded to whole patches."""
        size = (self.patch_size, self.patch_size)
        images = pad_to_multiple(images, size)
        grid = (images.shape[-2] // self.patch_size, images.shape[-1] // self.patch_size)
        tokens = self.linear(split_patches(images, size), self.weight.flatten(1), self.bias)
        return tokens.transpose(1, 2).reshape(tokens.shape[0], -1, *grid)  # batch dim rows columns


class ChannelLayerNorm(nn.Module):
    """Layer norm over the channels of a feature map (Ba et al. 2016)."""

    def __init__(self, channels: int, *, eps: float = 1e-6) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(channels, eps=eps)

    def forward(self, x: FeatureMap) -> FeatureMap:
        """Needs no copy in channels-last memory."""
        return self.norm(x.movedim(1, -1)).movedim(-1, 1)


def merge_cells(
    x: Float[Tensor, "batch rows columns dim"],
) -> Float[Tensor, "batch half_rows half_columns four_dim"]:
    """Concatenate each square of 2x2 positions, column by column; odd maps are zero-padded.

    Example:
        >>> import torch
        >>> merge_cells(torch.tensor([[1.0, 2.0], [3.0, 4.0]])[None, :, :, None]).flatten().tolist()
        [1.0, 3.0, 2.0, 4.0]
    """
    below, right = x.shape[1] % 2, x.shape[2] % 2
    if below or right:
        x = F.pad(x, (0, 0, 0, right, 0, below))
    squares = x.unflatten(2, (-1, 2)).unflatten(1, (-1, 2))  # b rows y columns x d
    return squares.permute(0, 1, 3, 4, 2, 5).flatten(3)  # b rows columns four_dim


class PatchMerging(nn.Module):
    """Concatenate squares of 2x2, normalise, project.

    Paper: Liu et al. 2021 (Swin), section 3.1, "patch merging"; the norm is in the published code only.
    """

    def __init__(self, dim: int, out_dim: int, *, eps: float = 1e-5) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4 * dim, eps=eps)
        self.reduction = Linear(4 * dim, out_dim, bias=False)

    def forward(
        self, x: Float[Tensor, "batch dim rows columns"]
    ) -> Float[Tensor, "batch out_dim half_rows half_columns"]:
        """Return the feature map of half the rows and columns, rounded up, in channels-last memory."""
        return self.reduction(self.norm(merge_cells(x.movedim(1, -1)))).movedim(-1, 1)


class PostNormPatchMerging(nn.Module):
    """Concatenate squares of 2x2, project, normalise.

    Paper: Liu et al. 2022 (Swin V2), published code.
    """

    def __init__(self, dim: int, out_dim: int, *, eps: float = 1e-5) -> None:
        super().__init__()
        self.reduction = Linear(4 * dim, out_dim, bias=False)
        self.norm = nn.LayerNorm(out_dim, eps=eps)

    def forward(
        self, x: Float[Tensor, "batch dim rows columns"]
    ) -> Float[Tensor, "batch out_dim half_rows half_columns"]:
        """Return the feature map of half the rows and columns, rounded up, in channels-last memory."""
        return self.norm(self.reduction(merge_cells(x.movedim(1, -1)))).movedim(-1, 1)
