"""Windows of a grid: padding, shift and partition, and stages whose tokens stay in window order.

The tokens of a stage stay in window order from its first block to its last, as everything but attention
ignores their order. One gather between two blocks reorders them for the next windows, where rolling and
cutting the feature map would copy it six times.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from vitrail.nn.masks import shifted_window_mask
from vitrail.nn.patches import join_windows, split_windows

Grid = tuple[int, int]


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


def window_order(windows: Windows, *, device: torch.device | None = None) -> Int[Tensor, " places"]:
    """Return the indices into the padded grid that put it into window order."""
    rows, columns = windows.completed
    cells = torch.arange(rows * columns, device=device).reshape(1, rows, columns, 1)
    rolled = cells.roll((-windows.shift[0], -windows.shift[1]), dims=(1, 2))
    return split_windows(rolled.float(), windows.size).long().flatten()


def window_places(windows: Windows, *, device: torch.device | None = None) -> Int[Tensor, " cells"]:
    """Return the indices that undo ``window_order``."""
    rows, columns = windows.completed
    places = torch.arange(rows * columns, device=device).reshape(-1, windows.num_tokens, 1)
    rolled = join_windows(places.float(), windows.completed, windows.size)
    return rolled.roll(windows.shift, dims=(1, 2)).long().flatten()


def window_cells(windows: Windows, *, device: torch.device | None = None) -> Int[Tensor, "windows tokens"]:
    """Return the grid index of each token of each window, -1 for padding."""
    order = window_order(windows, device=device)
    row, column = order // windows.completed[1], order % windows.completed[1]
    is_padding = (row >= windows.grid[0]) | (column >= windows.grid[1])
    cells = (row * windows.grid[1] + column).masked_fill(is_padding, -1)
    return cells.reshape(-1, windows.num_tokens)


def window_mask(
    windows: Windows, *, device: torch.device | None = None
) -> Bool[Tensor, "windows 1 tokens tokens"] | None:
    """Return the attention mask inside each window; None if all tokens see all of their window."""
    if not any(windows.shift) and not any(windows.padding):
        return None
    return shifted_window_mask(
        windows.completed, windows.size, windows.shift, padding=windows.padding, device=device
    )


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

    def forward(
        self, x: Float[Tensor, "batch dim_in rows_in columns_in"]
    ) -> Float[Tensor, "batch dim rows columns"]:
        x = self.downsample(x).movedim(1, -1)  # b rows columns d
        grid = (x.shape[1], x.shape[2])
        windows = fit_windows(grid, self.windows.size, shifted=False)
        gathers = self._gathers_of(grid, x.device)
        if any(windows.padding):
            x = F.pad(x, (0, 0, 0, windows.padding[1], 0, windows.padding[0]))
        x = _gather(x.flatten(1, 2), gathers.from_grid)  # b places d
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
    order, places = (make(plain, device=device) for make in (window_order, window_places))
    shifted_order, shifted_places = (make(shifted, device=device) for make in (window_order, window_places))
    last = places if num_blocks % 2 else shifted_places
    return _Gathers(order, places[shifted_order], shifted_places[order], last)


def _gather(x: Tensor, index: Tensor | None) -> Tensor:
    return x if index is None else x.index_select(1, index)
