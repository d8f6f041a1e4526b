"""Panels of what a model has learned: filters, position embeddings and heads, drawn into axes."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import cycle
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from vitrail.interpret.heads import SIMILAR_QUERIES, HeadGroup, LayerHeads
from vitrail.interpret.learned import BiasTable, DrawnFilters, DrawnPositions, HeadFindings, Learned
from vitrail.report.plots import COLOURS
from vitrail.report.tiles import (
    Inks,
    as_colours,
    map_size,
    name_tiles,
    set_in_rows,
    show_map,
    show_tiles,
    spread_places,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_TILES = 14  # per side of the grid of positions, as many as of a ViT at 224 pixels
MAX_PLACES = 128  # of a sequence; tables extend far beyond the sentences seen
MAX_BIAS_LAYERS = 24
MAX_TICKS = 12  # numbered along an axis
TILE_PX = 12  # minimum, so that gaps between small filters are narrow


class Panel(NamedTuple):
    """One plot."""

    key: str
    """File name without suffix."""
    heading: str
    """Section heading."""
    title: str
    """Distinguishes it within its section; empty if alone."""
    note: str
    """Caption, plain text, shared by the section."""
    size: tuple[float, float]
    """Width and height in inches."""
    labels: tuple[str, str]
    """Axis labels; empty for tiles."""
    draw: Callable[[Axes, Inks], None]
    """Draws into axes whose labels are set."""


def list_panels(found: Learned) -> list[Panel]:
    """Return all panels, in page order."""
    panels = [] if found.filters is None else [_filters_panel(found.filters)]
    panels += [_positions_panel(each, several=len(found.positions) > 1) for each in found.positions]
    if found.biases:
        panels.append(_biases_panel(found.biases))
    if found.heads is not None:
        panels += _head_panels(found.heads)
    return [panel._replace(key=_numbered(panels, place)) for place, panel in enumerate(panels)]


def series_of(layers: tuple[LayerHeads, ...]) -> dict[str, list[LayerHeads]]:
    """Group layers by part of the model and use, such as a decoder's cross-attention.

    A layer's depth is its index within the group.
    """
    series: dict[str, list[LayerHeads]] = {}
    for each in layers:
        series.setdefault(re.sub(r"\.\d+", "", each.layer), []).append(each)
    return series


def _filters_panel(filters: DrawnFilters) -> Panel:
    count, channels, height, width = filters.kernels.shape
    columns = min(7 if filters.shares is not None else 8, count)
    rows = -(-count // columns)
    if filters.shares is None:
        shown = f"The first {count} of" if count < filters.num_filters else "All"
        what = f"{shown} {filters.num_filters} filters of the first convolution, {height} x {width} pixels"
    else:
        what = (
            f"The first {count} principal components of the {filters.num_filters} patch-embedding filters, "
            f"{height} x {width} pixels; they hold {float(filters.shares.sum()):.0%} of the filters' variance"
        )
    colours = "" if channels == 3 else f" Its {channels} channels are averaged." * (channels > 1)
    note = f"{what} ({filters.layer}). Grey is zero; each is scaled to its own largest value.{colours}"
    factor = max(1, TILE_PX // max(height, width))
    values = filters.kernels.double().numpy().repeat(factor, axis=2).repeat(factor, axis=3)

    def draw(axes: Axes, inks: Inks) -> None:
        show_tiles(axes, set_in_rows(as_colours(values), columns, gap=max(1, factor * height // 8)))

    return Panel("filters", "Filters", "", note, (0.62 * columns, 0.62 * rows), ("", ""), draw)


def _positions_panel(positions: DrawnPositions, *, several: bool) -> Panel:
    title = positions.layer if several else ""
    if positions.grid is None:
        shown = min(MAX_PLACES, len(positions.similarity))
        note = f"Cosine between the embeddings of each two places of a sequence, the first {shown}."
        values = positions.similarity[:shown, :shown].double().numpy()
        labels = ("position", "position")
    else:
        rows, columns = (spread_places(length, MAX_TILES) for length in positions.grid)
        note = (
            "Each tile shows the cosine between the embedding of the patch with the indicated row and column "
            f"and those of all {positions.grid[0]} x {positions.grid[1]} patches."
        )
        cells = positions.similarity.unflatten(0, positions.grid).unflatten(-1, positions.grid)
        chosen = cells[rows][:, columns].double().numpy()
        values = set_in_rows(chosen.reshape(-1, *positions.grid), len(columns), gap=1)
        labels = ("patch column", "patch row")

    def draw(axes: Axes, inks: Inks) -> None:
        show_map(axes, values, inks, (-1.0, 1.0), "cosine")
        if positions.grid is not None:
            name_tiles(axes, columns, positions.grid[1] + 1, axis="x")
            name_tiles(axes, rows, positions.grid[0] + 1, axis="y")

    return Panel("positions", "Position embeddings", title, note, map_size(values), labels, draw)


def _biases_panel(biases: tuple[BiasTable, ...]) -> Panel:
    shown = biases[:MAX_BIAS_LAYERS]
    num_heads = max(len(each.biases) for each in shown)
    height = max(each.biases.shape[1] for each in shown)
    width = max(each.biases.shape[2] for each in shown)
    tiles = np.full((len(shown), num_heads, height, width), np.nan)
    for row, each in enumerate(shown):
        values = each.biases.double().numpy()
        tiles[row, : len(values), : values.shape[1], : values.shape[2]] = values / max(
            np.abs(values).max(), 1e-12
        )
    values = set_in_rows(tiles.reshape(-1, height, width), num_heads, gap=1)
    left = f" The first {len(shown)} of {len(biases)} layers." if len(shown) < len(biases) else ""
    note = (
        "What is added to the scores of a query and a key for the query's row and column minus the key's, "
        f"which are zero in the middle of a tile. Each layer is scaled to its own largest magnitude.{left}"
    )

    def draw(axes: Axes, inks: Inks) -> None:
        show_map(axes, values, inks, (-1.0, 1.0), "bias / largest", colours="RdBu_r")
        name_tiles(axes, list(range(num_heads)), width + 1, axis="x")
        name_tiles(axes, list(range(len(shown))), height + 1, axis="y")

    return Panel("biases", "Relative position biases", "", note, map_size(values), ("head", "layer"), draw)


def _head_panels(heads: HeadFindings) -> list[Panel]:
    panels = []
    layers = tuple(each for each in heads.layers if each.distance_px is not None)
    if layers:
        note = (
            "Distance from a query's patch to the patches it attends to, weighted by the attention and "
            "averaged over queries and images; one dot for each head. Attention to tokens that are no "
            "patches is left out."
        )
        panels.append(_dots_panel("distance", "Attention distance", note, "mean distance, pixels", layers))
    layers = tuple(each for each in heads.layers if each.entropy_shares is not None)
    if layers:
        note = (
            "Entropy of a query's attention as a share of what it would be if all keys within its reach got "
            "the same: 1 is even attention, 0 a single key; one dot for each head."
        )
        panels.append(_dots_panel("entropy", "Head entropy", note, "entropy / largest", layers))
    return panels + [_similarity_panel(each, len(heads.groups) > 1) for each in heads.groups]


def _dots_panel(key: str, heading: str, note: str, y_label: str, layers: tuple[LayerHeads, ...]) -> Panel:
    def draw(axes: Axes, inks: Inks) -> None:
        series, highest = series_of(layers), 0.0
        for colour, (name, members) in zip(cycle(COLOURS), series.items(), strict=False):
            points = [
                (depth, value)
                for depth, each in enumerate(members)
                for value in (each.distance_px if key == "distance" else each.entropy_shares) or ()
            ]
            x, y = zip(*points, strict=True)
            highest = max(highest, *y)
            axes.plot(x, y, "o", color=colour, markersize=5, alpha=0.75, markeredgewidth=0, label=name)
        depth = max(map(len, series.values()))
        axes.set_xticks(range(0, depth, -(-depth // MAX_TICKS)))
        axes.set_xlim(-0.5, depth - 0.5)
        axes.set_ylim(0, 1.03 if key == "entropy" else 1.08 * max(highest, 1e-6))
        if len(series) > 1:
            axes.legend(frameon=False, labelcolor=inks.ink, fontsize=8)

    return Panel(key, heading, "", note, (4.6, 3.3), ("layer", y_label), draw)


def _similarity_panel(group: HeadGroup, several: bool) -> Panel:
    values = group.similarity.double().numpy()
    edges = np.concatenate(([0], np.cumsum(group.num_heads)))
    note = (
        "Share of attention that two heads give to the same keys: one less the total variation distance of "
        f"their rows, averaged over samples and up to {SIMILAR_QUERIES} evenly spaced queries of each."
    )
    title = f"{group.layers[0]} to {group.layers[-1]}" if len(group.layers) > 1 else group.layers[0]

    def draw(axes: Axes, inks: Inks) -> None:
        show_map(axes, values, inks, (0.0, 1.0), "overlap")
        for edge in edges[1:-1]:
            axes.axhline(edge - 0.5, color="white", linewidth=0.7)
            axes.axvline(edge - 0.5, color="white", linewidth=0.7)
        centres = (edges[:-1] + edges[1:] - 1) / 2
        names = [str(place) for place in range(len(group.layers))]
        stride = -(-len(names) // MAX_TICKS)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_ticks(centres[::stride], names[::stride])

    label = "heads, layer by layer"
    return Panel(
        "similarity",
        "Head similarity",
        title if several else "",
        note,
        map_size(values),
        (label, label),
        draw,
    )


def _numbered(panels: list[Panel], place: int) -> str:
    """Return a panel's name, numbered where several share it."""
    key = panels[place].key
    alike = [other for other, panel in enumerate(panels) if panel.key == key]
    return key if len(alike) == 1 else f"{key}-{alike.index(place) + 1}"
