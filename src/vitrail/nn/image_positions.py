"""Cells of a padded image's map: which of them are the image's, and fixed positions over those alone."""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vitrail.nn.positions import WAVELENGTH_BASE

EXTENT = 2 * math.pi  # of an image's positions along an axis; Carion et al. 2020, published code
EPSILON = 1e-6  # likewise: added to the number of cells


def cells_inside(
    sizes: Int[Tensor, "batch 2"], image_size: tuple[int, int], grid: tuple[int, int]
) -> tuple[Bool[Tensor, "batch rows"], Bool[Tensor, "batch columns"]]:
    """Tell which rows and which columns of a map are those of images, and not of the padding behind them.

    A cell counts as the image's if the first pixel of its share of the padded image is.

    Args:
        sizes: height and width of each image in pixels, without the padding.
        image_size: height and width of the padded images.
        grid: rows and columns of the map.

    Source: Carion et al. 2020, published code, where the mask of pixels is resized to the nearest ones.

    Example:
        >>> rows, columns = cells_inside(torch.tensor([[64, 40]]), (64, 96), (2, 3))
        >>> rows.tolist(), columns.tolist()
        ([[True, True]], [[True, True, False]])
    """
    first_pixels = [
        torch.arange(cells, device=sizes.device) * pixels // cells
        for pixels, cells in zip(image_size, grid, strict=True)
    ]
    return first_pixels[0] < sizes[:, :1], first_pixels[1] < sizes[:, 1:]


def sine_positions_inside(
    rows: Bool[Tensor, "batch rows"], columns: Bool[Tensor, "batch columns"], dim: int
) -> Float[Tensor, "batch cells dim"]:
    """Return sines and cosines of each cell's row, then of its column, as shares of the image; float32.

    The last row and the last column of an image have the position two pi, however large it is. Rows and
    columns of the padding have positions too, which nobody should read.

    Args:
        rows: which rows are the image's; the first ones.
        columns: which columns are.
        dim: number of channels, a multiple of four.

    Paper: Carion et al. 2020, appendix A.4; the scale is that of the published code.
    """
    by_row, by_column = (_encode_axis(axis, dim // 2) for axis in (rows, columns))  # batch cells dim/2
    batch, grid = rows.shape[0], (rows.shape[1], columns.shape[1])
    row_part = by_row[:, :, None].expand(batch, *grid, -1)
    column_part = by_column[:, None].expand(batch, *grid, -1)
    return torch.cat((row_part, column_part), dim=-1).flatten(1, 2)  # batch cells dim


def _encode_axis(is_inside: Tensor, dim: int) -> Tensor:
    count = is_inside.cumsum(dim=1, dtype=torch.float32)
    place = count / (count[:, -1:] + EPSILON) * EXTENT
    channels = torch.arange(0, dim, 2, device=place.device, dtype=torch.float32)
    angles = place[..., None] / WAVELENGTH_BASE ** (channels / dim)
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(2)  # batch cells dim
