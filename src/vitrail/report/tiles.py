"""Maps and grids of tiles in the axes of a figure, with sharp pixels at any size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from vitrail.report.plots import INK, SOFT, white_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOUR_MAP = "viridis"  # that of Dosovitskiy et al. 2021, figure 7
MOST_WRITTEN = 12  # rows and columns of a matrix whose numbers are drawn
MOST_EDGED = 40  # rows and columns of a matrix whose entries have edges
LONGEST_NAME = 14  # characters of a row or column


class Inks(NamedTuple):
    """Colours of text and lines."""

    ink: str
    """Of text."""
    soft: str
    """Of ticks and dividing lines."""


ON_PAGE, ON_WHITE = Inks(INK, SOFT), Inks("#1b1f27", "#5c6675")


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


class Matrix(NamedTuple):
    """Numbers with names for their rows and columns."""

    name: str
    values: np.ndarray
    """Rows and columns of truth values, whole numbers or floats; minus infinity is a hidden entry."""
    rows: Sequence[str] = ()
    """Empty: counted from 0."""
    columns: Sequence[str] = ()

    @property
    def row_names(self) -> list[str]:
        return [*self.rows] or [str(number) for number in range(self.values.shape[0])]

    @property
    def column_names(self) -> list[str]:
        return [*self.columns] or [str(number) for number in range(self.values.shape[1])]

    def texts(self, decimals: int = 2) -> list[list[str]]:
        return [[_write(value, decimals) for value in row] for row in self.values.tolist()]

    def as_tree(self) -> dict[str, Any]:
        """Return plain values for JSON, with None for minus infinity."""
        values = [[value if abs(value) < np.inf else None for value in row] for row in self.values.tolist()]
        return {"name": self.name, "rows": self.row_names, "columns": self.column_names, "values": values}


def matrix_figure(
    matrices: Sequence[Matrix],
    *,
    columns: int = 3,
    limits: tuple[float, float] | None = None,
    title: str = "",
) -> Figure:
    """Draw matrices on white, in rows; small ones with their numbers.

    Args:
        columns: most matrices in a row.
        limits: values of the lightest and the darkest colour of all; by default each matrix has its own,
            which are equally far from zero if it has negative values.
    """
    columns = min(columns, len(matrices))
    rows = -(-len(matrices) // columns)
    longest = min(max((len(name) for each in matrices for name in each.rows), default=1), LONGEST_NAME)
    widest = max((each.values.shape[1] for each in matrices if _is_written(each)), default=6)
    width = max(3.0, 0.42 * widest + 0.07 * longest + 0.5)
    tallest = max(min(each.values.shape[0] / each.values.shape[1], 1.2) for each in matrices)
    figure = white_figure(width * columns, rows * max(1.5, 0.75 + tallest * (width - 0.8)), title)
    for axes, matrix in zip(figure.subplots(rows, columns, squeeze=False).flat, matrices, strict=False):
        show_matrix(axes, matrix, limits)
    for axes in figure.axes[len(matrices) :]:
        axes.set_visible(False)
    return figure


def show_matrix(axes: Axes, matrix: Matrix, limits: tuple[float, float] | None = None) -> None:
    """Draw a matrix: truth as blue and white, negative values red to blue, others white to blue."""
    values = matrix.values.astype(float)
    finite = np.ma.masked_invalid(values)
    has_negative = bool((finite < 0).any())
    if limits is None:
        largest = 1.0 if matrix.values.dtype == bool else max(float(np.abs(finite).max()), 1e-12)
        limits = (-largest if has_negative else 0.0, largest)
    colours = "RdBu" if has_negative else "Blues"
    axes.set_facecolor("#c9ced6")  # hidden entries
    axes.imshow(finite, vmin=limits[0], vmax=limits[1], cmap=colours, interpolation="none", alpha=0.75)
    axes.set_title(matrix.name, fontsize=9, parse_math=False)
    for axis, names, given in (
        (axes.xaxis, matrix.column_names, matrix.columns),
        (axes.yaxis, matrix.row_names, matrix.rows),
    ):
        stride = 1 if given else -(-len(names) // 10)
        shown = [name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 2]}.." for name in names]
        axis.set_ticks(range(0, len(names), stride), shown[::stride], fontsize=8, parse_math=False)
    axes.tick_params(length=0, top=True, labeltop=True, bottom=False, labelbottom=False)
    if max(map(len, matrix.columns), default=0) > 2:
        axes.tick_params(axis="x", labelrotation=90)
    for spine in axes.spines.values():
        spine.set_color("#c9ced6")
    if max(values.shape) <= MOST_EDGED:
        axes.set_xticks(np.arange(0.5, values.shape[1] - 1), minor=True)
        axes.set_yticks(np.arange(0.5, values.shape[0] - 1), minor=True)
        axes.grid(which="minor", color="white", linewidth=0.8)
        axes.tick_params(which="minor", length=0)
    elif max(values.shape) > 4 * min(values.shape):
        axes.set_aspect("auto")
    if _is_written(matrix):
        for row, texts in enumerate(matrix.texts()):
            for column, text in enumerate(texts):
                is_dark = abs(values[row, column]) > 0.7 * limits[1] and np.isfinite(values[row, column])
                colour = "white" if is_dark else "black"
                axes.text(column, row, text, ha="center", va="center", fontsize=7, color=colour)


def _is_written(matrix: Matrix) -> bool:
    return matrix.values.dtype != bool and max(matrix.values.shape) <= MOST_WRITTEN


def _write(value: float, decimals: int) -> str:
    return f"{value:.{decimals}f}" if isinstance(value, float) else str(int(value))
