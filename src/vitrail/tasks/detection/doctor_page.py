"""What the doctor's page shows of images with boxes: the boxes on them, their sizes, shapes and positions."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from html import escape

import numpy as np

from vitrail.data.findings import number_of
from vitrail.data.images import read_image
from vitrail.interpret.draw import Corners
from vitrail.report.plots import INK, SOFT, inline_svg, new_figure
from vitrail.tasks.data_page import (
    DataView,
    Drawn,
    colour_class,
    draw_picture,
    plot_counts,
    plots_of_sizes,
    position_in,
)
from vitrail.tasks.detection.dataset import BoxDataset, BoxSplit
from vitrail.tasks.detection.faults import clip_to, find_faults, order_corners

MARGIN = 0.3  # of the image's side, shown at most beyond it for a faulty box there
MANY = 12  # boxes, above which names are shown on hover only
MOST = 600  # boxes drawn in one picture
MAP_SIDE = 24  # rows and columns of the location map


def view_boxes(dataset: BoxDataset) -> DataView:
    """Return how the page shows a detection data set."""
    return DataView(
        lambda split, index, marked: draw_boxes(split, index, dataset.class_names, marked),
        labels=lambda split: [set(labels.tolist()) for labels in split.labels],
        things="boxes",
        plots=plots_of_boxes(dataset),
    )


def draw_boxes(
    split: BoxSplit, index: int, class_names: Sequence[str], marked: Collection[int] = ()
) -> Drawn:
    """Draw one image with its boxes, faintly unless ``marked``."""
    picture = read_image(split.images[index], name=split.names[index])
    labels, boxes = split.labels[index], split.boxes[index]
    view = _view(picture.size, boxes[[number for number in marked if number < len(labels)]])
    # Small boxes last, so that they lie over large ones and can be pointed at.
    ordered = order_corners(np.nan_to_num(boxes))
    order = np.argsort(-(ordered[:, 2:] - ordered[:, :2]).prod(axis=1), kind="stable")[:MOST]
    shown = [number for number in order.tolist() if np.isfinite(boxes[number]).all()]
    drawn = "".join(
        _box(boxes[number], int(labels[number]), class_names, number, view, number in marked)
        for number in [*(n for n in shown if n not in marked), *(n for n in shown if n in marked)]
    )
    flags = {"many": len(labels) - len(marked) > MANY, "marked": marked}
    kinds = [kind for kind, flag in flags.items() if flag]
    return draw_picture(picture, view, drawn, caption=f", {number_of(len(labels), 'box')}", kinds=kinds)


def _box(
    corners: np.ndarray, label: int, names: Sequence[str], number: int, view: Corners, is_marked: bool
) -> str:
    ordered = order_corners(corners[None])[0]
    left, right = np.clip(ordered[[0, 2]], view[0], view[2]).tolist()
    top, bottom = np.clip(ordered[[1, 3]], view[1], view[3]).tolist()
    width, height = view[2] - view[0], view[3] - view[1]
    is_low, is_end = (top - view[1]) / height < 0.07, (left - view[0]) / width > 0.7
    flags = {"fault": is_marked, "low": is_low, "end": is_end}
    kinds = [colour_class(label), *(kind for kind, flag in flags.items() if flag)]
    name = escape(names[label])
    title = f"{name}, box {number}: {corners[2] - corners[0]:.6g} x {corners[3] - corners[1]:.6g} px"
    style = position_in(view, (left, top, right, bottom))
    return f'<i class="{" ".join(kinds)}" data-k="{label}" style="{style}" title="{title}"><b>{name}</b></i>'


def _view(size: tuple[int, int], boxes_xyxy: np.ndarray) -> Corners:
    """Return the image, and what of these boxes lies beyond it, up to a margin."""
    sides = np.array(size, dtype=np.float64)
    ordered = order_corners(boxes_xyxy[np.isfinite(boxes_xyxy).all(axis=1)])
    low, high = ordered[:, :2].min(axis=0, initial=0), ordered[:, 2:].max(axis=0, initial=0)
    pad = 0.02 * sides  # beyond the outermost line
    first = np.where(low < 0, np.maximum(low - pad, -MARGIN * sides), 0)
    last = np.where(high > sides, np.minimum(high + pad, (1 + MARGIN) * sides), sides)
    return float(first[0]), float(first[1]), float(last[0]), float(last[1])


def plots_of_boxes(dataset: BoxDataset) -> list[str]:
    """Return the plots as elements of a page; empty if no split has a usable box."""
    boxes, sizes = {}, {}
    for name, split in dataset.splits.items():
        together = np.concatenate([np.zeros((0, 4), dtype=np.float32), *split.boxes])
        of_images = np.repeat(split.sizes, _numbers(split), axis=0)
        faults = find_faults(together, of_images)
        usable = ~(faults.not_finite | faults.empty | faults.outside) & (of_images > 0).all(axis=1)
        if usable.any():
            boxes[name] = clip_to(order_corners(together[usable]), of_images[usable])
            sizes[name] = of_images[usable]
    if not boxes:
        return []
    sides = {name: (part[:, 2:] - part[:, :2])[:, ::-1] for name, part in boxes.items()}
    number = plot_counts(dataset, _numbers, "boxes in an image", "images")
    return [*plots_of_sizes(sides, "boxes"), number, _cover_plot(boxes, sizes)]


def _numbers(split: BoxSplit) -> list[int]:
    return [len(labels) for labels in split.labels]


def _cover_plot(boxes: Mapping[str, np.ndarray], sizes: Mapping[str, np.ndarray]) -> str:
    """Draw how often each location of the images is covered by a box, all splits together."""
    shares = np.concatenate([boxes[name] / sizes[name][:, [1, 0, 1, 0]] for name in boxes])
    edges = np.hstack((np.floor(shares[:, :2] * MAP_SIDE), np.ceil(shares[:, 2:] * MAP_SIDE))).astype(int)
    covered = np.zeros((MAP_SIDE, MAP_SIDE))
    for left, top, right, bottom in edges.clip(0, MAP_SIDE):
        covered[top:bottom, left:right] += 1
    figure, axes = new_figure("share of the width", "share of the height")
    axes.grid(visible=False)
    drawn = axes.imshow(covered, extent=(0, 1, 1, 0), cmap="viridis", interpolation="nearest", vmin=0)
    bar = figure.colorbar(drawn, ax=axes, shrink=0.85)
    bar.ax.tick_params(colors=SOFT, labelcolor=INK)
    bar.set_label("boxes over it", color=INK)
    bar.outline.set_visible(False)
    return inline_svg(figure, "where the boxes are")
