"""Covering cells of an image: which pixels a cell has, and what covers them."""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

Filling = Literal["blur", "mean"]
FILLINGS: tuple[Filling, ...] = get_args(Filling)
BLUR_SHARE = (
    1 / 8
)  # of the longer side: the standard deviation of the blur, which leaves colours but no shapes


def cell_of_pixels(size: tuple[int, int], grid: tuple[int, int]) -> Int[Tensor, "{size[0]} {size[1]}"]:
    """Return the number of the cell that each pixel lies in, row by row; sides differ by at most one pixel.

    Example:
        >>> cell_of_pixels((2, 3), (1, 2)).tolist()
        [[0, 0, 1], [0, 0, 1]]
    """
    row, column = (torch.arange(side) * count // side for side, count in zip(size, grid, strict=True))
    return row[:, None] * grid[1] + column


def cover(
    images: Float[Tensor, "batch channels height width"],
    fillings: Float[Tensor, "#batch channels height width"],
    is_covered: Bool[Tensor, "batch rows columns"],
) -> Float[Tensor, "batch channels height width"]:
    """Return the images with some cells taken from their fillings.

    Args:
        images: of any values.
        fillings: of the same size, one for each image or one for all.
        is_covered: True where a cell is replaced.
    """
    cells = cell_of_pixels(images.shape[-2:], is_covered.shape[-2:]).to(images.device)  # type: ignore[arg-type]
    return torch.where(is_covered.flatten(1)[:, cells][:, None], fillings, images)


def fill_images(
    images: Float[Tensor, "batch channels height width"], filling: Filling
) -> Float[Tensor, "batch channels height width"]:
    """Return what is seen where an image is covered.

    Args:
        images: normalised, so that zero is the mean colour of the data.
        filling: ``mean``, the data's mean colour; or ``blur``, the image itself without its shapes, which is
            nearer to what a model has seen before.

    Paper: Petsiuk et al. 2018 (RISE), section 4.1, has both.
    """
    return torch.zeros_like(images) if filling == "mean" else _blur(images)


def _blur(images: Tensor) -> Tensor:
    """Average with Gaussian weights; what lies outside the image does not count."""
    height, width = images.shape[-2:]
    spread = max(height, width) * BLUR_SHARE
    rows, columns = (_weights(side, spread).to(images) for side in (height, width))
    return rows @ images @ columns.T


def _weights(side: int, spread: float) -> Float[Tensor, "{side} {side}"]:
    places = torch.arange(side, dtype=torch.float64)
    weights = torch.exp(-((places[:, None] - places) ** 2) / (2 * math.pow(spread, 2)))
    return weights / weights.sum(dim=1, keepdim=True)
