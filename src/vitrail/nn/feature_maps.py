"""Feature maps as tokens and back, their grids, and the stages that make them.

Feature maps are in channels-last memory, so that flattening them to tokens is only a view.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from vitrail.nn.tokens import FeatureMap, Grid, InputMap, Tokens


def map_to_tokens(x: FeatureMap) -> Tokens:
    """View a feature map as tokens, row by row; a copy only if its memory is not channels-last."""
    return x.flatten(2).transpose(1, 2)


def flatten_map(x: FeatureMap) -> tuple[Tokens, Grid]:
    """Return ``map_to_tokens`` and the rows and columns of the feature map."""
    return map_to_tokens(x), (x.shape[-2], x.shape[-1])


def tokens_to_map(x: Tokens, grid: Grid) -> FeatureMap:
    """View tokens as a feature map in channels-last memory."""
    return x.transpose(1, 2).reshape(x.shape[0], -1, *grid)


def coarser_grid(grid: Grid, stride: int) -> Grid:
    """Return rows and columns after a stride, rounded up.

    Example:
        >>> coarser_grid((224, 225), 16)
        (14, 15)
    """
    return -(-grid[0] // stride), -(-grid[1] // stride)


def run_stages(stages: Iterable[nn.Module], x: InputMap) -> list[FeatureMap]:
    """Return the feature map of each stage of a pyramid, finest first."""
    maps = []
    for stage in stages:
        x = stage(x)
        maps.append(x)
    return maps
