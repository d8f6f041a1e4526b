"""Lightweight and dynamic convolution: softmax-normalised depthwise kernels shared by heads (Wu et al. 2019).

For an image the kernels are two-dimensional: in a sequence of rows, vertical neighbours are a whole row
apart, and the end of a row is next to the start of the following one.

Prefix tokens are outside of the grid: they receive the mean over the patches, and no patch sees them.

A causal kernel, of a decoder, ends with the token itself; no mask is needed, and none is read.
"""

from __future__ import annotations

import math
from functools import partial

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from vitrail.nn.blocks import Dropout
from vitrail.nn.cache import LayerCache
from vitrail.nn.masks import hide_padding
from vitrail.nn.mixers.contract import MixerShape, locate
from vitrail.nn.tap import Tap, one_grid
from vitrail.nn.tokens import Grid, Mask, Tokens

SEQUENCE_KERNEL = 15  # Wu et al. 2019, section 4.2: 3, 7, 15 and 31 from the first block to the last
GRID_KERNEL = 7  # Liu et al. 2022 (ConvNeXt), section 2.5, found no gain in more


class LightConvolution(nn.Module):
    """Apply a softmax-normalised depthwise kernel, shared by the channels of a head, to gated tokens.

    Args:
        kernel_size: rows and columns of a kernel, odd; one row for sequences.
        kernel_dropout: probability that a weight of the normalised kernel is dropped (DropConnect).
        causal: whether a token sees only itself and earlier ones; for sequences.

    Paper: Wu et al. 2019, section 3; input by gated linear unit and output projection as in figure 2.
    """

    name = "light_convolution"

    tap: Tap | None

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        kernel_size: tuple[int, int],
        kernel_dropout: float = 0.0,
        causal: bool = False,
    ) -> None:
        super().__init__()
        assert dim % num_heads == 0, f"{num_heads} heads do not divide {dim} channels"
        self.num_heads, self.kernel_size, self.causal = num_heads, kernel_size, causal
        self.kernel_dropout = Dropout(kernel_dropout)
        self.expand = nn.Linear(dim, 2 * dim)
        self.add_scores(dim, math.prod(kernel_size))
        self.projection = nn.Linear(dim, dim)
        self.tap = None

    def add_scores(self, dim: int, num_weights: int) -> None:
        """Make the parameters that the kernels come from."""
        self.position_scores = nn.Parameter(torch.empty(self.num_heads, num_weights))
        nn.init.xavier_uniform_(self.position_scores)  # as the paper's published code

    def forward(
        self,
        x: Tokens,
        *,
        may_attend: Mask | None = None,
        grid: Grid | None = None,
        cache: LayerCache | None = None,
    ) -> Tokens:
        values = F.glu(self.expand(x))
        if not self.causal:
            values = hide_padding(values, may_attend, layer=self.name)
        num_prefix, shape = locate(x.shape[1], None if self.kernel_size[0] == 1 else grid)
        patches = values[:, num_prefix:]
        kernels = self.kernels(patches)
        if cache is not None:
            return self.projection(_mix_past(kernels, values, cache, self.tap))
        if self.tap is not None:
            weights = kernels.expand(x.shape[0], -1, patches.shape[1], -1)  # b h patches k
            matrix = self._mixing_matrix(weights, num_prefix, shape, may_attend)
            self.tap.take_weights(matrix, kind="mixing", grids=one_grid(grid))
        mixed = self.convolve(patches, kernels, shape)
        return self.projection(_with_prefix(mixed, num_prefix, may_attend))

    def kernels(self, patches: Tensor) -> Float[Tensor, "#batch heads #patches weights"]:
        """Return the kernel of each head, and of each patch where they differ."""
        return self.kernel_dropout(self.position_scores.softmax(dim=-1, dtype=torch.float32))[None, :, None]

    def convolve(self, patches: Tensor, kernels: Tensor, grid: Grid) -> Float[Tensor, "batch patches dim"]:
        per_channel = kernels[0, :, 0].repeat_interleave(patches.shape[-1] // self.num_heads, dim=0)  # d k
        rows, columns = self.kernel_size
        mixed = F.conv2d(
            patches.transpose(1, 2).reshape(patches.shape[0], -1, *grid),  # b d rows columns
            per_channel.reshape(-1, 1, rows, columns).to(patches.dtype),
            padding=(0, columns - 1) if self.causal else (rows // 2, columns // 2),
            groups=patches.shape[-1],
        )[..., : grid[1]]  # without what a causal kernel computes behind the last token
        return mixed.flatten(2).transpose(1, 2)

    def _mixing_matrix(
        self, kernels: Tensor, num_prefix: int, grid: Grid, may_attend: Tensor | None
    ) -> Float[Tensor, "batch heads tokens tokens"]:
        """Return the whole mixing matrix: the mean for prefix tokens, then the patches' kernels."""
        positions = kernel_positions(grid, self.kernel_size, causal=self.causal, device=kernels.device)
        weights = F.pad(_spread(kernels, positions), (num_prefix, 0))  # b h patches tokens
        if may_attend is not None:
            weights = weights.masked_fill(~may_attend, 0.0)
            may_attend = may_attend.expand(*weights.shape[:2], -1, -1).flatten(0, 1)[:, None]
        matrix = _with_prefix(weights.flatten(0, 1), num_prefix, may_attend)
        return matrix.reshape(*weights.shape[:2], -1, weights.shape[-1])


class DynamicConvolution(LightConvolution):
    """``LightConvolution`` with a kernel that each token predicts for itself.

    The kernels are applied as a banded mixing matrix, which for the few hundred tokens of an image or a
    sentence takes less memory than a copy of each token's whole neighbourhood.

    Paper: Wu et al. 2019, section 4.
    """

    name = "dynamic_convolution"

    def add_scores(self, dim: int, num_weights: int) -> None:
        self.kernel = nn.Linear(dim, self.num_heads * num_weights)

    def kernels(self, patches: Tensor) -> Float[Tensor, "batch heads patches weights"]:
        scores = self.kernel(patches).unflatten(-1, (self.num_heads, -1))  # b patches h k
        kernels = scores.softmax(dim=-1, dtype=torch.float32).transpose(1, 2)  # b h patches k
        return self.kernel_dropout(kernels).to(patches.dtype)

    def convolve(self, patches: Tensor, kernels: Tensor, grid: Grid) -> Float[Tensor, "batch patches dim"]:
        positions = kernel_positions(grid, self.kernel_size, causal=self.causal, device=patches.device)
        by_head = patches.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)  # b h patches d
        return (_spread(kernels, positions) @ by_head).transpose(1, 2).flatten(2)


def kernel_positions(
    grid: Grid, kernel_size: tuple[int, int], *, causal: bool = False, device: torch.device | None = None
) -> Int[Tensor, "patches patches"]:
    """Return the index into the kernel around each patch, or up to it if causal, for every patch, row by row.

    Indices are below the number of kernel weights, or that number for patches outside the kernel.

    Example:
        >>> kernel_positions((1, 4), (1, 3)).tolist()
        [[1, 2, 3, 3], [0, 1, 2, 3], [3, 0, 1, 2], [3, 3, 0, 1]]
    """
    along = []
    for length, size in zip(grid, kernel_size, strict=True):
        positions = torch.arange(length, device=device)
        centre = size - 1 if causal else size // 2
        along.append(positions - positions[:, None] + centre)  # centres patches
    rows, columns = along[0][:, None, :, None], along[1][None, :, None, :]
    inside = (rows >= 0) & (rows < kernel_size[0]) & (columns >= 0) & (columns < kernel_size[1])
    positions = (rows * kernel_size[1] + columns).where(inside, kernel_size[0] * kernel_size[1])
    return positions.flatten(2).flatten(0, 1)  # patches patches


def _mix_past(kernels: Tensor, values: Tensor, cache: LayerCache, tap: Tap | None) -> Tensor:
    """Mix the newest token of each hypothesis with the last ones of its past.

    Args:
        kernels: (#sentences heads #hypotheses k), the newest token's weight last.
        values: (sentences hypotheses dim), which are added to the cache.
    """
    by_head = values.unflatten(-1, (kernels.shape[1], -1)).transpose(1, 2)  # b h n d
    past, layer = cache
    _, remembered = past.write(layer, by_head[..., :0], by_head)  # no keys
    by_step = F.pad(kernels, (past.num_steps - kernels.shape[-1], 0))  # a negative number cuts off
    weights = past.spread(by_step)
    if past.bias is not None:
        weights = weights * past.bias.exp()  # one in a hypothesis' own past, else zero
    if tap is not None:
        tap.take_weights(weights.expand(*by_head.shape[:3], -1), kind="mixing", grids=None)
    return (weights.to(values.dtype) @ remembered).transpose(1, 2).flatten(2)


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


def _build(shape: MixerShape, *, kind: type[LightConvolution]) -> nn.Module:
    size = shape.kernel_size or (SEQUENCE_KERNEL if shape.grid is None else GRID_KERNEL)
    return kind(
        shape.dim,
        shape.num_heads,
        kernel_size=(1 if shape.grid is None else size, size),
        kernel_dropout=shape.kernel_dropout,
        causal=shape.causal,
    )


MIXERS = {
    "light_convolution": partial(_build, kind=LightConvolution),
    "dynamic_convolution": partial(_build, kind=DynamicConvolution),
}
