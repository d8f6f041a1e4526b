"""Feature maps of falling resolution as one row of tokens, and where their cells are in the image."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

Grid = tuple[int, int]


class Frame(NamedTuple):
    """Where images lie in their maps, in x and y, as shares of each map's width and height."""

    extent: Float[Tensor, "batch 2 levels"]
    """What the image covers; above one where its last cell is not a whole one."""
    first: Float[Tensor, "batch 2 levels"]
    """The centre of its first cell."""
    last: Float[Tensor, "batch 2 levels"]
    """The centre of its last one."""


class FeatureLevels(NamedTuple):
    """The cells of several maps of the same images."""

    tokens: Float[Tensor, "batch cells dim"]
    """Of each map row by row, one map after the other; zero where the image has no such cell."""
    grids: tuple[Grid, ...]
    """Rows and columns of each map, those of the largest image."""
    strides: tuple[int, ...]
    """Pixels between neighbouring cells of each map."""
    sizes: Float[Tensor, "batch 2"]
    """Height and width of each image in pixels."""
    is_image: Bool[Tensor, "batch cells"] | None
    """Whether a cell is one of the image; None where all are."""


def join_levels(
    maps: Sequence[Float[Tensor, "batch _ _ _"]],
    sizes: Int[Tensor, "batch 2"],
    inside: Sequence[Bool[Tensor, "batch 1 _ _"] | None],
    *,
    strides: tuple[int, ...],
) -> FeatureLevels:
    """Return the cells of maps.

    Args:
        maps: with one cell for each ``stride`` pixels that began; zero where they are not the image's.
        sizes: height and width of each image in pixels.
        inside: which cells of each map are the image's; None where all are.
        strides: pixels between neighbouring cells of each map.
    """
    grids = tuple((each.shape[-2], each.shape[-1]) for each in maps)
    tokens = torch.cat([each.flatten(2).transpose(1, 2) for each in maps], dim=1)  # b cells d
    masks = [each.flatten(1) for each in inside if each is not None]
    is_image = torch.cat(masks, dim=1) if masks else None
    return FeatureLevels(tokens, grids, strides, sizes.to(torch.float32), is_image)


def cell_centres(levels: FeatureLevels) -> Float[Tensor, "batch cells 2"]:
    """Return the x and y of each cell's centre, as shares of its image's width and height."""
    device = levels.sizes.device
    pixels = []
    for (rows, columns), stride in zip(levels.grids, levels.strides, strict=True):
        y, x = ((torch.arange(length, device=device) + 0.5) * stride for length in (rows, columns))
        pixels.append(torch.stack((x.expand(rows, -1), y[:, None].expand(-1, columns)), dim=-1))
    joined = torch.cat([each.flatten(0, 1) for each in pixels])  # cells 2
    return joined / levels.sizes.flip(1)[:, None]


def cell_sizes(levels: FeatureLevels) -> Float[Tensor, "batch cells 2"]:
    """Return the width and height of each cell, as shares of its image's."""
    lengths = [
        torch.full((rows * columns, 1), float(stride), device=levels.sizes.device)
        for (rows, columns), stride in zip(levels.grids, levels.strides, strict=True)
    ]
    return torch.cat(lengths) / levels.sizes.flip(1)[:, None]


def image_frame(levels: FeatureLevels) -> Frame:
    """Return where the images lie in their maps, padding and all."""
    strides = levels.sizes.new_tensor(levels.strides)
    cells = levels.sizes.flip(1)[..., None] / strides  # b 2 levels
    lengths = levels.sizes.new_tensor([(columns, rows) for rows, columns in levels.grids]).T  # 2 levels
    return Frame(cells / lengths, (0.5 / lengths).expand_as(cells), (cells.ceil() - 0.5) / lengths)
