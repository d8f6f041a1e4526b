"""Plots of a detection data set's boxes: size, shape, number and location."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float, Int64

from vitrail.report.plots import COLOURS, INK, SOFT, inline_svg, new_figure
from vitrail.tasks.detection.dataset import BoxDataset
from vitrail.tasks.detection.faults import clip_to, find_faults, order_corners

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BINS = 24
PLACES = 24  # rows and columns of the location map
COCO_SMALL, COCO_LARGE = 32, 96  # sides in pixels of squares that separate small, medium and large in COCO
WIDEST = 8.0  # beyond this aspect, shapes are counted with the last bar


def plots_of_boxes(dataset: BoxDataset) -> list[str]:
    """Return the plots as elements of a page; empty if no split has a usable box."""
    boxes, sizes, counts = {}, {}, {}
    for name, split in dataset.splits.items():
        together, their_sizes = _usable(
            np.concatenate([np.zeros((0, 4), dtype=np.float32), *split.boxes]),
            np.repeat(split.sizes, [len(labels) for labels in split.labels], axis=0),
        )
        if len(together):
            boxes[name], sizes[name] = together, their_sizes
            counts[name] = np.array([len(labels) for labels in split.labels])
    if not boxes:
        return []
    return [_side_plot(boxes), _aspect_plot(boxes), _count_plot(counts), _place_plot(boxes, sizes)]


def _usable(
    boxes_xyxy: Float[np.ndarray, "n 4"], sizes: Int64[np.ndarray, "n 2"]
) -> tuple[np.ndarray, np.ndarray]:
    faults = find_faults(boxes_xyxy, sizes)
    chosen = ~(faults.not_finite | faults.empty | faults.outside) & (sizes > 0).all(axis=1)
    return clip_to(order_corners(boxes_xyxy[chosen]), sizes[chosen]), sizes[chosen]


def _side_plot(boxes: Mapping[str, np.ndarray]) -> str:
    sides = {name: np.sqrt(_width_height(part).prod(axis=1)) for name, part in boxes.items()}
    smallest = max(0.5, min(float(part.min()) for part in sides.values()))
    largest = max(float(part.max()) for part in sides.values())
    edges = np.geomspace(smallest * 0.99, max(largest, smallest * 2) * 1.01, BINS + 1)
    figure, axes = new_figure("root of width times height, px", "boxes, %")
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    for side in (COCO_SMALL, COCO_LARGE):
        if edges[0] < side < edges[-1]:
            axes.axvline(side, color=SOFT, linewidth=1, linestyle=":", zorder=3)
    _draw_shares(axes, sides, edges)
    return inline_svg(figure, "sizes of the boxes by split")


def _aspect_plot(boxes: Mapping[str, np.ndarray]) -> str:
    shapes = {}
    for name, part in boxes.items():
        width, height = _width_height(part).T
        shapes[name] = np.clip(width / height, 1 / WIDEST, WIDEST)
    edges = np.geomspace(1 / WIDEST * 0.999, WIDEST * 1.001, BINS + 1)
    figure, axes = new_figure("width over height", "boxes, %")
    axes.set_xscale("log", base=2)
    axes.set_xticks([0.125, 0.25, 0.5, 1, 2, 4, 8], ["1:8", "1:4", "1:2", "1", "2:1", "4:1", "8:1"])
    axes.axvline(1, color=SOFT, linewidth=1, linestyle=":", zorder=3)
    _draw_shares(axes, shapes, edges)
    return inline_svg(figure, "shapes of the boxes by split")


def _count_plot(counts: Mapping[str, np.ndarray]) -> str:
    from matplotlib.ticker import MaxNLocator

    most = max(int(part.max()) for part in counts.values())
    width = max(1, -(-(most + 1) // BINS))  # whole numbers in each bin
    edges = np.arange(0, most + 1 + width, width) - 0.5
    figure, axes = new_figure("boxes in an image", "images, %")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=7, integer=True))
    _draw_shares(axes, counts, edges)
    return inline_svg(figure, "number of boxes in an image by split")


def _place_plot(boxes: Mapping[str, np.ndarray], sizes: Mapping[str, np.ndarray]) -> str:
    """Draw how often each location of the images is covered by a box, all splits together."""
    shares = np.concatenate([boxes[name] / sizes[name][:, [1, 0, 1, 0]] for name in boxes])
    first, last = np.floor(shares[:, :2] * PLACES), np.ceil(shares[:, 2:] * PLACES)
    # Each box adds one to a rectangle: at its corners, then cumulated along both axes.
    steps = np.zeros((PLACES + 1, PLACES + 1))
    left, top = first.astype(int).clip(0, PLACES).T
    right, bottom = last.astype(int).clip(0, PLACES).T
    for rows, columns, sign in ((top, left, 1), (bottom, right, 1), (top, right, -1), (bottom, left, -1)):
        np.add.at(steps, (rows, columns), sign)
    covered = steps.cumsum(axis=0).cumsum(axis=1)[:PLACES, :PLACES]
    figure, axes = new_figure("share of the width", "share of the height")
    axes.grid(visible=False)
    extent = (0, 1, 1, 0)
    drawn = axes.imshow(covered, extent=extent, cmap="viridis", interpolation="nearest", vmin=0)
    axes.set_aspect("equal")
    bar = figure.colorbar(drawn, ax=axes, shrink=0.85)
    bar.ax.tick_params(colors=SOFT, labelcolor=INK)
    bar.set_label("boxes over it", color=INK)
    bar.outline.set_visible(False)
    return inline_svg(figure, "where the boxes are")


def _draw_shares(axes: Axes, values: Mapping[str, np.ndarray], edges: np.ndarray) -> None:
    """Draw a histogram per split, in percent of the split, so that unequal splits can be compared."""
    for colour, (name, part) in zip(COLOURS, values.items(), strict=False):
        numbers, _ = np.histogram(part, bins=edges)
        shares = 100 * numbers / max(len(part), 1)
        axes.stairs(shares, edges, color=colour, linewidth=1.6, label=f"{name} ({len(part):,})")
        axes.stairs(shares, edges, color=colour, fill=True, alpha=0.12)
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, labelcolor=INK)


def _width_height(boxes_xyxy: np.ndarray) -> np.ndarray:
    return boxes_xyxy[:, 2:] - boxes_xyxy[:, :2]
