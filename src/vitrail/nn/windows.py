"""Attention inside windows (Swin's W-MSA), shifted in every second block (SW-MSA), and stages of it.

The tokens of a stage stay in window order from its first block to its last, as everything but attention
ignores their order. One gather between two blocks reorders them for the next windows, where rolling and
cutting the feature map would copy it six times.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn

from vitrail.nn.attention import AttentionLayer
from vitrail.nn.linear import Linear
from vitrail.nn.tap import TokenGrids
from vitrail.nn.tokens import FeatureMap, Grid, InputMap, Tokens

INITIAL_SCALE = 10.0  # Liu et al. 2022 (Swin V2), published code
MAX_SCALE = 100.0  # Liu et al. 2022 (Swin V2), section 3.2: the temperature is at least 0.01
MIN_NORM = 1e-12  # avoids division by zero
PADDING_REGION = 9  # after the nine regions that a shift makes


class Windows(NamedTuple):
    """How a grid is padded, rolled and cut into windows."""

    grid: Grid
    """Rows and columns of the image's tokens."""
    size: Grid
    """Rows and columns of a window."""
    shift: Grid
    """Rows and columns by which the padded grid is rolled up and left before it is cut."""

    @property
    def completed(self) -> Grid:
        """Rows and columns of whole windows."""
        rows, columns = (-(-length // size) * size for length, size in zip(self.grid, self.size, strict=True))
        return rows, columns

    @property
    def padding(self) -> Grid:
        """Rows of padding below and columns to the right."""
        return self.completed[0] - self.grid[0], self.completed[1] - self.grid[1]

    @property
    def num_windows(self) -> int:
        return self.completed[0] * self.completed[1] // self.num_tokens

    @property
    def num_tokens(self) -> int:
        """Tokens of a window."""
        return self.size[0] * self.size[1]


def fit_windows(grid: Grid, window: Grid, *, shifted: bool) -> Windows:
    """Return the windows of a grid: no longer than it is, and not shifted where one covers it.

    Args:
        window: rows and columns of a window where the grid is long enough.
        shifted: whether the windows are shifted by half their length.

    Paper: Liu et al. 2021 (Swin), section 3.2; windows that cover the grid: published code.

    Example:
        >>> fit_windows((5, 14), (7, 7), shifted=True)
        Windows(grid=(5, 14), size=(5, 7), shift=(0, 3))
    """
    rows, columns = (min(length, size) for length, size in zip(grid, window, strict=True))
    down, right = (
        size // 2 if shifted and length > size else 0 for length, size in zip(grid, window, strict=True)
    )
    return Windows(grid, (rows, columns), (down, right))


def split_windows(
    x: Shaped[Tensor, "batch rows columns dim"], window: tuple[int, int]
) -> Shaped[Tensor, "windows tokens dim"]:
    """Cut a grid of tokens into windows, which become the batch; row by row within an image.

    Args:
        x: rows and columns are multiples of the window's.
    """
    rows, columns = x.shape[1] // window[0], x.shape[2] // window[1]
    patches = x.reshape(x.shape[0], rows, window[0], columns, window[1], x.shape[-1])
    return patches.transpose(2, 3).flatten(3, 4).flatten(0, 2)  # windows tokens dim


def window_order(windows: Windows, *, device: torch.device | None = None) -> Int[Tensor, " tokens"]:
    """Return the indices into the padded grid that put it into window order."""
    rows, columns = windows.completed
    patches = torch.arange(rows * columns, device=device).reshape(1, rows, columns, 1)
    rolled = patches.roll((-windows.shift[0], -windows.shift[1]), dims=(1, 2))
    return split_windows(rolled, windows.size).flatten()


def grid_order(windows: Windows, *, device: torch.device | None = None) -> Int[Tensor, " tokens"]:
    """Return the indices that undo ``window_order``."""
    return window_order(windows, device=device).argsort()


def window_positions(
    windows: Windows, *, device: torch.device | None = None
) -> Int[Tensor, "windows tokens"]:
    """Return the grid index of each token of each window, -1 for padding."""
    order = window_order(windows, device=device)
    row, column = order // windows.completed[1], order % windows.completed[1]
    is_padding = (row >= windows.grid[0]) | (column >= windows.grid[1])
    patches = (row * windows.grid[1] + column).masked_fill(is_padding, -1)
    return patches.reshape(-1, windows.num_tokens)


def window_mask(
    windows: Windows, *, device: torch.device | None = None
) -> Bool[Tensor, "windows 1 tokens tokens"] | None:
    """Let a token see those of its window that were its neighbours before the grid was rolled.

    The windows at the far edges of the rolled grid hold tokens from opposite sides of the image, which must
    not see each other. Padding is seen by padding only, so that every token sees at least itself.

    Returns:
        One mask for each window, row by row; None if all tokens see all of their window.

    Paper: Liu et al. 2021 (Swin), section 3.2, figure 4.
    """
    if not any(windows.shift) and not any(windows.padding):
        return None
    regions, are_padding = [], []
    axes = zip(windows.completed, windows.size, windows.shift, windows.padding, strict=True)
    for length, size, shift, padding in axes:
        positions = torch.arange(length, device=device)
        # Untouched windows, the last window's own part, and what wrapped around.
        region = (positions >= length - size).long() + (positions >= length - shift).long()
        regions.append(region if shift else torch.zeros_like(positions))
        are_padding.append(positions.roll(-shift) >= length - padding)
    region = regions[0][:, None] * 3 + regions[1]  # rows columns
    region = region.masked_fill(are_padding[0][:, None] | are_padding[1], PADDING_REGION)
    split = split_windows(region[None, :, :, None], windows.size)[..., 0]  # windows tokens
    return (split[:, :, None] == split[:, None, :])[:, None]  # windows 1 tokens tokens


class WindowAttention(AttentionLayer):
    """Attend inside windows, with a relative position bias.

    Args:
        windows: of the native grid; its size is the maximum.
        shifted: whether the windows are shifted where more than one is needed.
        bias: from a window's rows and columns to the bias of each pair of its tokens.

    Paper: Liu et al. 2021 (Swin), equation 4 and section 3.2.
    """

    scale: float | None = None
    mask: Tensor | None

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        windows: Windows,
        shifted: bool,
        bias: nn.Module,
        qkv_bias: bool = True,
    ) -> None:
        super().__init__()
        assert dim % num_heads == 0, f"{num_heads} heads do not divide {dim} channels"
        self.num_heads, self.windows, self.shifted = num_heads, windows, shifted
        self.qkv = Linear(dim, 3 * dim, bias=qkv_bias)
        self.relative_bias = bias
        self.projection = Linear(dim, dim)
        self.register_buffer("mask", window_mask(windows), persistent=False)

    def forward(self, x: Tokens, *, may_attend: None = None, grid: Grid | None = None) -> Tokens:
        """Return new tokens.

        Args:
            x: window by window, as ``window_order``.
            may_attend: always None: windows make their own mask.
            grid: rows and columns of the image's tokens.
        """
        assert grid is not None, "windows need the grid"
        windows = fit_windows(grid, self.windows.size, shifted=self.shifted)
        query, key, value = self.split_heads(x, windows.num_tokens)
        mask = self.mask if windows == self.windows else window_mask(windows, device=x.device)
        bias = _bias_of_window(self.relative_bias, self.windows.size, windows.size)
        batch = query.shape[0] // windows.num_windows
        if self.tap is not None:
            positions = window_positions(windows, device=x.device)
            grids = TokenGrids(queries=grid, keys=grid, windows=(positions, positions))
            of_all = None if mask is None else _repeat(mask, batch)
            self.tap(query, key, bias=bias, may_attend=of_all, scale=self.scale, kind="self", grids=grids)
        bias = bias.to(query.dtype)
        if mask is not None:
            # Made for the windows of one image, then copied for each image: the mask is not read for each
            # head.
            bias = _repeat(torch.where(mask, bias, -math.inf), batch)
        result = self.attend(query, key, value, bias=bias, scale=self.scale)
        if self.tap is not None:
            self.tap.take_result(value, result)
        return self.projection(result.transpose(1, 2).reshape(x.shape))

    def split_heads(self, x: Tokens, window_tokens: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values (windows heads tokens dim)."""
        qkv = self.qkv(x).reshape(-1, window_tokens, 3, self.num_heads, x.shape[-1] // self.num_heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind()
        return query, key, value


class CosineWindowAttention(WindowAttention):
    """Attend inside windows by the cosine of query and key over a learned temperature; keys have no bias.

    Paper: Liu et al. 2022 (Swin V2), equation 2.
    """

    linear = staticmethod(F.linear)
    scale = 1.0

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        windows: Windows,
        shifted: bool,
        bias: nn.Module,
        qkv_bias: bool = True,
    ) -> None:
        super().__init__(dim, num_heads, windows=windows, shifted=shifted, bias=bias, qkv_bias=False)
        self.query_bias = nn.Parameter(torch.zeros(dim)) if qkv_bias else None
        self.value_bias = nn.Parameter(torch.zeros(dim)) if qkv_bias else None
        self.log_scale = nn.Parameter(torch.full((num_heads,), math.log(INITIAL_SCALE)))

    def split_heads(self, x: Tokens, window_tokens: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return L2-normalised queries and keys, the queries times the scale of their head, and values."""
        bias = None
        if self.query_bias is not None and self.value_bias is not None:
            bias = torch.cat((self.query_bias, torch.zeros_like(self.query_bias), self.value_bias))
        qkv = self.linear(x, self.qkv.weight, bias)
        qkv = qkv.reshape(-1, window_tokens, 3, self.num_heads, x.shape[-1] // self.num_heads)
        value = qkv[:, :, 2].transpose(1, 2)  # windows heads tokens d
        query, key = self._normalise(qkv[:, :, :2]).permute(2, 0, 3, 1, 4).unbind()
        return query, key, value

    def _normalise(
        self, query_key: Float[Tensor, "windows tokens 2 heads dim"]
    ) -> Float[Tensor, "windows tokens 2 heads dim"]:
        return query_key * self._factors(query_key)

    def _factors(self, query_key: Tensor) -> Tensor:
        scale = self.log_scale.clamp(max=math.log(MAX_SCALE)).exp()
        scales = torch.stack((scale, torch.ones_like(scale)))[..., None]  # 2 heads 1
        norms = torch.linalg.vector_norm(query_key, dim=-1, keepdim=True).clamp(min=MIN_NORM)
        return (scales.to(norms.dtype) / norms).to(query_key.dtype)


def _repeat(of_windows: Tensor, batch: int) -> Tensor:
    """Repeat what belongs to one image's windows for all images."""
    return of_windows.expand(batch, *of_windows.shape).flatten(0, 1)


def _bias_of_window(bias: nn.Module, window: Grid, size: Grid) -> Float[Tensor, "1 heads tokens tokens"]:
    """Return the bias of each pair of tokens; a smaller window is the corner of the larger one."""
    pairs: Tensor = bias(window)
    if size == window:
        return pairs
    pairs = pairs.unflatten(3, window).unflatten(2, window)  # 1 h y x y x
    rows, columns = size
    return pairs[:, :, :rows, :columns, :rows, :columns].flatten(4).flatten(2, 3)


class WindowStage(nn.Module):
    """A pyramid stage with attention inside windows, shifted in every second block.

    Args:
        downsample: from the previous feature map to the stage's; identity where they are the same.
        blocks: each is called with the tokens in window order and ``grid``, the rows and columns of the map.
        windows: unshifted, of the native grid.

    Paper: Liu et al. 2021 (Swin), figure 3.
    """

    def __init__(self, *, downsample: nn.Module, blocks: Sequence[nn.Module], windows: Windows) -> None:
        super().__init__()
        self.downsample = downsample
        self.blocks = nn.ModuleList(blocks)
        self.windows = windows
        for name, index in _gathers(windows.grid, windows.size, len(blocks))._asdict().items():
            self.register_buffer(name, index, persistent=False)

    def forward(self, x: InputMap) -> FeatureMap:
        x = self.downsample(x).movedim(1, -1)  # b rows columns d
        grid = (x.shape[1], x.shape[2])
        windows = fit_windows(grid, self.windows.size, shifted=False)
        gathers = self._gathers_of(grid, x.device)
        if any(windows.padding):
            x = F.pad(x, (0, 0, 0, windows.padding[1], 0, windows.padding[0]))
        x = _gather(x.flatten(1, 2), gathers.from_grid)  # b tokens d
        for index, block in enumerate(self.blocks):
            if index:
                x = _gather(x, gathers.to_shifted if index % 2 else gathers.to_plain)
            x = block(x, grid=grid)
        x = _gather(x, gathers.to_grid).unflatten(1, windows.completed)  # b rows columns d
        return x[:, : grid[0], : grid[1]].movedim(-1, 1)

    def _gathers_of(self, grid: Grid, device: torch.device) -> _Gathers:
        if grid != self.windows.grid:
            return _gathers(grid, self.windows.size, len(self.blocks), device=device)
        return _Gathers(*(getattr(self, name) for name in _Gathers._fields))


class _Gathers(NamedTuple):
    """Index of the token for each position; None for the identity."""

    from_grid: Tensor | None
    to_shifted: Tensor | None
    to_plain: Tensor | None
    to_grid: Tensor | None


def _gathers(grid: Grid, window: Grid, num_blocks: int, *, device: torch.device | None = None) -> _Gathers:
    plain, shifted = (fit_windows(grid, window, shifted=each) for each in (False, True))
    if plain.num_windows == 1:
        return _Gathers(None, None, None, None)
    order, back = (make(plain, device=device) for make in (window_order, grid_order))
    shifted_order, shifted_back = (make(shifted, device=device) for make in (window_order, grid_order))
    last = back if num_blocks % 2 else shifted_back
    return _Gathers(order, back[shifted_order], shifted_back[order], last)


def _gather(x: Tensor, index: Tensor | None) -> Tensor:
    return x if index is None else x.index_select(1, index)
