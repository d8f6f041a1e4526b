"""Lightweight and dynamic convolution: softmax-normalised depthwise kernels shared by heads (Wu et al. 2019).

For an image the kernels are two-dimensional: in a sequence of rows, vertical neighbours are a whole row
apart, and the end of a row is next to the start of the following one.

Prefix tokens are outside of the grid: they receive the mean over the patches, and no patch sees them.
"""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from vitrail.nn.masks import hide_padding
from vitrail.nn.mixers.contract import MixerShape, locate
from vitrail.nn.tap import Tap, TokenGrids
from vitrail.nn.tokens import Grid, Mask, Tokens

SEQUENCE_KERNEL = (1, 15)  # Wu et al. 2019, section 4.2: 3, 7, 15 and 31 from the first block to the last
GRID_KERNEL = (7, 7)  # Liu et al. 2022 (ConvNeXt), section 2.5, found no gain in more


class LightConvolution(nn.Module):
    """Apply a softmax-normalised depthwise kernel, shared by the channels of a head, to gated tokens.

    Args:
        kernel_size: rows and columns of a kernel, odd; one row for sequences.

    Paper: Wu et al. 2019, section 3; input by gated linear unit and output projection as in figure 2.
    Departs from the paper: without DropConnect on the kernel's weights.
    """

    tap: Tap | None

    def __init__(self, dim: int, num_heads: int, *, kernel_size: tuple[int, int]) -> None:
        super().__init__()
        assert dim % num_heads == 0, f"{num_heads} heads do not divide {dim} channels"
        self.num_heads, self.kernel_size = num_heads, kernel_size
        self.expand = nn.Linear(dim, 2 * dim)
        self.position_scores = nn.Parameter(torch.empty(num_heads, kernel_size[0] * kernel_size[1]))
        nn.init.xavier_uniform_(self.position_scores)  # as the paper's published code
        self.projection = nn.Linear(dim, dim)
        self.tap = None

    def forward(self, x: Tokens, *, may_attend: Mask | None = None, grid: Grid | None = None) -> Tokens:
        values = hide_padding(F.glu(self.expand(x)), may_attend, layer="light_convolution")
        num_prefix, shape = locate(x.shape[1], None if self.kernel_size[0] == 1 else grid)
        kernel = self.position_scores.softmax(dim=-1, dtype=torch.float32)  # h k
        if self.tap is not None:
            weights = kernel[:, None].expand(x.shape[0], -1, shape[0] * shape[1], -1)  # b h patches k
            matrix = _mixing_matrix(weights, self.kernel_size, num_prefix, shape, may_attend)
            self.tap.take_weights(matrix, kind="mixing", grids=_token_grids(grid))
        per_channel = kernel.repeat_interleave(values.shape[-1] // self.num_heads, dim=0)  # d k
        mixed = F.conv2d(
            values[:, num_prefix:].transpose(1, 2).reshape(x.shape[0], -1, *shape),  # b d rows columns
            per_channel.reshape(-1, 1, *self.kernel_size).to(values.dtype),
            padding=(self.kernel_size[0] // 2, self.kernel_size[1] // 2),
            groups=values.shape[-1],
        )
        return self.projection(_with_prefix(mixed.flatten(2).transpose(1, 2), num_prefix, may_attend))


class DynamicConvolution(nn.Module):
    """Apply a softmax-normalised kernel that each token predicts for itself to gated tokens.

    The kernels are applied as a banded mixing matrix, which for the few hundred tokens of an image or a
    sentence takes less memory than a copy of each token's whole neighbourhood.

    Args:
        kernel_size: rows and columns of a kernel, odd; one row for sequences.

    Paper: Wu et al. 2019, section 4; input by gated linear unit and output projection as in figure 2.
    Departs from the paper: without DropConnect on the kernel's weights.
    """

    tap: Tap | None

    def __init__(self, dim: int, num_heads: int, *, kernel_size: tuple[int, int]) -> None:
        super().__init__()
        assert dim % num_heads == 0, f"{num_heads} heads do not divide {dim} channels"
        self.num_heads, self.kernel_size = num_heads, kernel_size
        self.expand = nn.Linear(dim, 2 * dim)
        self.kernel = nn.Linear(dim, num_heads * kernel_size[0] * kernel_size[1])
        self.projection = nn.Linear(dim, dim)
        self.tap = None

    def forward(self, x: Tokens, *, may_attend: Mask | None = None, grid: Grid | None = None) -> Tokens:
        values = hide_padding(F.glu(self.expand(x)), may_attend, layer="dynamic_convolution")
        num_prefix, shape = locate(x.shape[1], None if self.kernel_size[0] == 1 else grid)
        of_patches = values[:, num_prefix:]
        kernels = self.kernel(of_patches).unflatten(-1, (self.num_heads, -1))  # b patches h k
        kernels = kernels.softmax(dim=-1, dtype=torch.float32).transpose(1, 2)  # b h patches k
        kernels = kernels.to(values.dtype)
        if self.tap is not None:
            matrix = _mixing_matrix(kernels, self.kernel_size, num_prefix, shape, may_attend)
            self.tap.take_weights(matrix, kind="mixing", grids=_token_grids(grid))
        positions = kernel_positions(shape, self.kernel_size, device=x.device)
        weights = _spread(kernels, positions)  # b h patches patches
        by_head = of_patches.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)  # b h patches d
        mixed = weights @ by_head
        return self.projection(_with_prefix(mixed.transpose(1, 2).flatten(2), num_prefix, may_attend))


def kernel_positions(
    grid: Grid, kernel_size: tuple[int, int], *, device: torch.device | None = None
) -> Int[Tensor, "patches patches"]:
    """Return the index into the kernel around each patch for every patch, row by row.

    Indices are below the number of kernel weights, or that number for patches outside the kernel.

    Example:
        >>> kernel_positions((1, 4), (1, 3)).tolist()
        [[1, 2, 3, 3], [0, 1, 2, 3], [3, 0, 1, 2], [3, 3, 0, 1]]
    """
    along = []
    for length, size in zip(grid, kernel_size, strict=True):
        positions = torch.arange(length, device=device)
        along.append(positions - positions[:, None] + size // 2)  # centres patches
    rows, columns = along[0][:, None, :, None], along[1][None, :, None, :]
    inside = (rows >= 0) & (rows < kernel_size[0]) & (columns >= 0) & (columns < kernel_size[1])
    positions = (rows * kernel_size[1] + columns).where(inside, kernel_size[0] * kernel_size[1])
    return positions.flatten(2).flatten(0, 1)  # patches patches


def _spread(kernels: Tensor, positions: Tensor) -> Tensor:
    """Scatter the kernel of each centre into a row of the mixing matrix."""
    padded = F.pad(kernels, (0, 1))  # b h patches k+1
    return padded.gather(-1, positions.expand(*kernels.shape[:2], -1, -1))  # b h patches patches


def _with_prefix(mixed: Tensor, num_prefix: int, may_attend: Tensor | None) -> Tensor:
    """Prepend the prefix tokens: for each the mean over the patches that are not padding."""
    if not num_prefix:
        return mixed
    if may_attend is None:
        mean = mixed.mean(dim=1, keepdim=True)
    else:
        is_there = may_attend[:, 0, 0, num_prefix:, None].to(mixed.dtype)  # b or 1, patches 1
        mean = (mixed * is_there).sum(dim=1, keepdim=True) / is_there.sum(dim=1, keepdim=True).clamp_min(1)
    return torch.cat((mean.expand(-1, num_prefix, -1), mixed), dim=1)


def _mixing_matrix(
    kernels: Tensor,
    kernel_size: tuple[int, int],
    num_prefix: int,
    grid: tuple[int, int],
    may_attend: Tensor | None,
) -> Float[Tensor, "batch heads tokens tokens"]:
    """Return the whole mixing matrix: the mean for prefix tokens, then the patches' kernels."""
    weights = _spread(kernels, kernel_positions(grid, kernel_size, device=kernels.device))
    weights = F.pad(weights, (num_prefix, 0))  # b h patches tokens
    if may_attend is not None:
        weights = weights.masked_fill(~may_attend, 0.0)
    by_head = weights.flatten(0, 1)  # b*h patches tokens
    if may_attend is not None:
        may_attend = may_attend.expand(len(weights), weights.shape[1], -1, -1).flatten(0, 1)[:, None]
    return _with_prefix(by_head, num_prefix, may_attend).reshape(*weights.shape[:2], -1, weights.shape[-1])


def _token_grids(grid: Grid | None) -> TokenGrids | None:
    return None if grid is None else TokenGrids(queries=grid, keys=grid)


def _build(shape: MixerShape, *, kind: type[LightConvolution] | type[DynamicConvolution]) -> nn.Module:
    kernel_size = SEQUENCE_KERNEL if shape.grid is None else GRID_KERNEL
    return kind(shape.dim, shape.num_heads, kernel_size=kernel_size)


MIXERS = {
    "light_convolution": partial(_build, kind=LightConvolution),
    "dynamic_convolution": partial(_build, kind=DynamicConvolution),
}
