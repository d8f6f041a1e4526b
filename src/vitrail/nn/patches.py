"""Pixels to patches, and the linear patch embedding."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.nn.tokens import FeatureMap, Images


def split_patches(images: Images, patch_size: tuple[int, int]) -> Float[Tensor, "batch patches pixels"]:
    """Cut images into patches, row by row; a patch's values are ordered channel, row, column.

    Args:
        images: height and width are multiples of the patch's.
    """
    rows, columns = images.shape[-2] // patch_size[0], images.shape[-1] // patch_size[1]
    blocks = images.reshape(*images.shape[:2], rows, patch_size[0], columns, patch_size[1])
    return blocks.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)  # batch patches pixels


def pad_to_multiple(
    images: Images, multiple: tuple[int, int]
) -> Float[Tensor, "batch channels padded_height padded_width"]:
    """Zero-pad below and to the right until height and width are multiples of the given ones."""
    below, right = -images.shape[-2] % multiple[0], -images.shape[-1] % multiple[1]
    return F.pad(images, (0, right, 0, below)) if below or right else images


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
