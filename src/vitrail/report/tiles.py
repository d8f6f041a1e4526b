"""Maps and grids of tiles in the axes of a figure, with sharp pixels at any size."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOUR_MAP = "viridis"  # that of Dosovitskiy et al. 2021, figure 7


class Inks(NamedTuple):
    """Colours of text and lines."""

    ink: str
    """Of text."""
    soft: str
    """Of ticks and dividing lines."""


def as_colours(kernels: np.ndarray) -> np.ndarray:
    """Convert filters (channels, rows, columns) to opaque RGB pixels, with zero as grey."""
    if kernels.shape[1] != 3:
        kernels = kernels.mean(axis=1, keepdims=True).repeat(3, axis=1)
    largest = np.abs(kernels).max(axis=(1, 2, 3), keepdims=True)
    pixels = 0.5 + 0.5 * kernels / np.maximum(largest, 1e-12)
    opaque = np.ones_like(pixels[:, :1])
    return np.concatenate((pixels, opaque), axis=1).transpose(0, 2, 3, 1)  # filters rows columns rgba


def set_in_rows(tiles: np.ndarray, columns: int, *, gap: int) -> np.ndarray:
    """Arrange tiles of numbers or colours in rows; gaps are NaN or transparent."""
    count, height, width = tiles.shape[:3]
    rows = -(-count // columns)
    empty = 0.0 if tiles.ndim == 4 else np.nan
    sheet = np.full((rows * (height + gap) - gap, columns * (width + gap) - gap, *tiles.shape[3:]), empty)
    for place, tile in enumerate(tiles):
        top, left = place // columns * (height + gap), place % columns * (width + gap)
        sheet[top : top + height, left : left + width] = tile
    return sheet


def show_tiles(axes: Axes, pixels: np.ndarray) -> None:
    """Draw pixels as they are, without axes."""
    axes.imshow(pixels, interpolation="none")
    axes.set_axis_off()


def show_map(
    axes: Axes,
    values: np.ndarray,
    inks: Inks,
    limits: tuple[float, float],
    name: str,
    *,
    colours: str = COLOUR_MAP,
) -> None:
    """Draw a map with a colour bar; NaN stays empty."""
    axes.grid(visible=False)
    for spine in axes.spines.values():
        spine.set_visible(False)
    masked = np.ma.masked_invalid(values)
    drawn = axes.imshow(masked, vmin=limits[0], vmax=limits[1], cmap=colours, interpolation="none")
    figure = axes.get_figure()
    assert figure is not None
    bar = figure.colorbar(drawn, ax=axes, shrink=0.8)
    bar.ax.tick_params(colors=inks.soft, labelcolor=inks.ink)
    bar.set_label(name, color=inks.ink)
    bar.outline.set_visible(False)


def name_tiles(axes: Axes, numbers: list[int], step: int, *, axis: str) -> None:
    """Number the rows or columns (``axis`` y or x) of tiles ``step`` apart, with at most seven labels."""
    stride = -(-len(numbers) // 7)
    places = [step * place + (step - 2) / 2 for place in range(len(numbers))][::stride]
    names = [str(number) for number in numbers][::stride]
    (axes.xaxis if axis == "x" else axes.yaxis).set_ticks(places, names)


def map_size(values: np.ndarray) -> tuple[float, float]:
    """Return the size in inches of a map and its colour bar; the longer side is always the same."""
    height, width = values.shape[:2]
    scale = 3.4 / max(height, width)
    return max(1.2, width * scale) + 1.5, max(1.2, height * scale) + 0.5


def spread_places(length: int, most: int) -> list[int]:
    """Return at most so many evenly spaced indices."""
    if length <= most:
        return list(range(length))
    return [round(place) for place in np.linspace(0, length - 1, most).tolist()]
