"""What a model has learned as files: a page, one picture of all panels, or a folder of both."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from itertools import cycle
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from vitrail.core.durable import atomic_write
from vitrail.core.errors import ConfigError
from vitrail.engines.export.comparison import spread
from vitrail.interpret.heads import SIMILAR_QUERIES, HeadGroup, LayerHeads
from vitrail.interpret.learned import (
    BiasTable,
    Filters,
    PositionTable,
    position_similarity,
    principal_filters,
)
from vitrail.interpret.viewer.maps import layer_titles
from vitrail.report.page import conclusions, section, table, write_page
from vitrail.report.plots import COLOURS, check_picture_path, is_picture
from vitrail.report.tiles import Inks, as_colours, map_size, name_tiles, set_in_rows, show_map, show_tiles
from vitrail.studies.inspecting import HEAD_PANELS, HeadFindings, Learned
from vitrail.studies.panels import Panel, draw_panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PAGE_NAME = "learned.html"  # in a folder
STYLE = """.sections{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,440px),1fr));gap:18px}
.sections section{margin:0}.wide{grid-column:1/-1}
.panels{display:flex;flex-wrap:wrap;gap:22px;align-items:flex-start}
.panels figure{max-width:100%;flex:0 1 auto}.panels svg{width:var(--wide);max-width:100%}
svg image{image-rendering:pixelated}"""
PIXELS_PER_INCH = 96


def check_learned_path(path: Path) -> None:
    """Check the output path before any work.

    Raises:
        ConfigError: the suffix is unknown, or a folder is in the place of a file, or the reverse.
    """
    check_picture_path(path, others=(".html", ".htm", ""))
    if path.exists() and path.is_dir() != (path.suffix == ""):
        raise ConfigError(
            f"{path} is {'a folder' if path.is_dir() else 'a file'} already",
            expected="a name that is free, or of what may be replaced",
            remedy="Choose another output",
        )


def write_learned(path: Path, found: Learned, *, title: str) -> list[Path]:
    """Write a page, a picture of all panels, or a folder with the page and a picture of each panel.

    Args:
        path: ends in .html, .png, .svg or .pdf, or has no suffix and names a folder.

    Returns:
        The written files.

    Raises:
        ConfigError: as ``check_learned_path``.
        CheckpointError: the disk is full or not writable; former files are as they were.
    """
    check_learned_path(path)
    groups = list_panels(found)
    if is_picture(path):
        first = [group.in_picture(group.panels[0]) for group in groups]
        atomic_write(path, draw_panels(first, path.suffix, columns=3, tile=(4.8, 3.9), title=title))
        return [path]
    if path.suffix:
        _write_page(path, found, groups, title)
        return [path]
    path.mkdir(parents=True, exist_ok=True)
    _write_page(path / PAGE_NAME, found, groups, title)
    written = [path / PAGE_NAME]
    for group in groups:
        for number, panel in enumerate(group.panels, start=1):
            picture = path / f"{group.key}{f'-{number}' if len(group.panels) > 1 else ''}.png"
            tile = (panel.size[0] + 0.3, panel.size[1])
            atomic_write(picture, draw_panels([group.in_picture(panel)], ".png", columns=1, tile=tile))
            written.append(picture)
    return written


NEARLY_EVEN = 0.97  # entropy of a head that hardly chooses, as a share of even attention's
LAYER_HEADER = ("layer", "heads", "distance, px", "entropy (1 = even)", "entropy, nats")


def layer_table(heads: HeadFindings) -> tuple[list[str], list[list[str]]]:
    """Return the table of layers, without empty columns: layer, heads, distance and entropies."""
    rows = []
    for each, title in zip(heads.layers, layer_titles(heads.layers), strict=True):
        ranges = (
            _range(each.distance_px, ".1f"),
            _range(each.entropy_shares, ".2f"),
            _range(each.entropy, ".2f"),
        )
        rows.append([title, str(len(each.entropy)), *ranges])
    filled = [place for place in range(len(LAYER_HEADER)) if any(row[place] for row in rows)]
    return [LAYER_HEADER[place] for place in filled], [[row[place] for place in filled] for row in rows]


def measured_on(heads: HeadFindings) -> str:
    """Return a sentence about the data that heads were measured on."""
    said = f"Heads are measured on {heads.num_samples} of the {heads.origin}"
    if heads.image_size is not None:
        said += f", {heads.image_size[1]} x {heads.image_size[0]} pixels"
    if heads.num_unreadable:
        said += f"; {heads.num_unreadable} that could not be read were passed over"
    if heads.not_measured:
        said += f"; {len(heads.not_measured)} layers are left out, as their weights do not sum to one"
    return f"{said}."


def reasons(found: Learned) -> list[tuple[str, str]]:
    """Return what is left out and why, one line per reason."""
    by_reason: dict[str, list[str]] = {}
    for name, reason in found.left_out.items():
        by_reason.setdefault(reason, []).append(name)
    return [(", ".join(names), f"{reason}.") for reason, names in by_reason.items()]


def _write_page(path: Path, found: Learned, groups: list[Group], title: str) -> None:
    facts = f"{found.model}. " + (measured_on(found.heads) if found.heads is not None else "")
    sections = []
    for group in groups:
        framed = section(
            group.heading, f'<div class="panels">{"".join(map(_figure, group.panels))}</div>', group.note
        )
        sections.append(f'<div class="wide">{framed}</div>' if len(group.panels) > 1 else framed)
    parts = [f'<h1>{escape(title)}</h1><p class="soft">{escape(facts)}</p>', conclusions(_conclude(found))]
    parts.append(f'<div class="sections">{"".join(sections)}</div>')
    if found.heads is not None:
        header, rows = layer_table(found.heads)
        numbers = frozenset(place for place, name in enumerate(header) if name != "layer")
        note = "Mean over heads, and their range."
        parts.append(section("Layers", table(header, rows, numbers), note))
    if found.left_out:
        parts.append(section("Not drawn", table(("", ""), reasons(found))))
    write_page(path, title=title, body="\n".join(parts), style=STYLE)


def _conclude(found: Learned) -> list[str]:
    """Say how many heads choose among their keys, and how far they reach."""
    layers = found.heads.layers if found.heads is not None else ()
    shares = [share for each in layers for share in each.entropy_shares or ()]
    distances = [fmean(each.distance_px) for each in layers if each.distance_px]
    even = sum(share > NEARLY_EVEN for share in shares)
    says = [f"{even} of {len(shares)} heads attend nearly evenly (entropy above {NEARLY_EVEN} of 1)."]
    if len(distances) > 1:
        ends = f"{distances[0]:.1f} pixels in the first layer, {distances[-1]:.1f} in the last"
        says.append(f"The mean distance of attention is {ends}.")
    return (
        says if shares else [f"No head was measured: {found.left_out.get(HEAD_PANELS[1], 'there is none')}."]
    )


def _figure(panel: Panel) -> str:
    caption = f"<figcaption>{escape(panel.title)}</figcaption>" if panel.title else ""
    wide = round(panel.size[0] * PIXELS_PER_INCH)
    return f'<figure style="--wide:{wide}px">{panel.to_svg()}{caption}</figure>'


def _range(values: tuple[float, ...] | None, form: str) -> str:
    """Format the mean of values, with their range if there are several."""
    if values is None:
        return ""
    mean = f"{sum(values) / len(values):{form}}"
    return mean if len(values) == 1 else f"{mean} ({min(values):{form}} to {max(values):{form}})"


MAX_TILES = 14  # per side of the grid of positions, as many as of a ViT at 224 pixels
MAX_FILTERS = 64  # of a convolution, drawn as they are
MAX_POSITIONS = 128  # of a sequence; tables extend far beyond the sentences seen
MAX_BIAS_LAYERS = 24
MAX_TICKS = 12  # numbered along an axis
TILE_PX = 12  # minimum, so that gaps between small filters are narrow


class Group(NamedTuple):
    """Plots of one section."""

    key: str
    """File name without suffix and number."""
    heading: str
    note: str
    """Caption, plain text."""
    panels: list[Panel]
    """Each titled if there are several."""

    def in_picture(self, panel: Panel) -> Panel:
        """Return a panel whose title includes the heading."""
        return panel._replace(title="\n".join(filter(None, (self.heading, panel.title))))


def list_panels(found: Learned) -> list[Group]:
    """Return all plots, in page order."""
    groups = [] if found.filters is None else [_filters_group(found.filters)]
    if found.positions:
        groups.append(_positions_group(found.positions))
    if found.biases:
        groups.append(_biases_group(found.biases))
    return groups if found.heads is None else groups + _head_groups(found.heads)


def series_of(layers: Sequence[LayerHeads]) -> dict[str, list[LayerHeads]]:
    """Group layers by part of the model and use, such as a decoder's cross-attention.

    A layer's depth is its place within the group, counted from 1.

    >>> list(series_of([LayerHeads(f"decoder.{n}.cross_attention", "cross", None, (), 0) for n in (0, 1)]))
    ['decoder, cross-attention']
    """
    series: dict[str, list[LayerHeads]] = {}
    for each, title in zip(layers, layer_titles(layers), strict=True):
        kind = re.sub(r" ?\blayer \d+( \(stage \d+\))?", "", title).removeprefix(", ")
        series.setdefault(kind, []).append(each)
    return series


def _filters_group(filters: Filters) -> Group:
    """Draw the principal components of a patch embedding, or the first filters of a convolution."""
    total, channels, height, width = filters.weights.shape
    if filters.is_patch_embedding:
        kernels, shares = principal_filters(filters.weights)
        columns = min(7, len(kernels))
        what = (
            f"The first {len(kernels)} principal components of the {total} patch-embedding filters, "
            f"{height} x {width} pixels; they hold {float(shares.sum()):.0%} of the filters' variance"
        )
    else:
        kernels = filters.weights[:MAX_FILTERS]
        columns = min(8, len(kernels))
        shown = f"The first {len(kernels)} of" if len(kernels) < total else "All"
        what = f"{shown} {total} filters of the first convolution, {height} x {width} pixels"
    rows = -(-len(kernels) // columns)
    colours = "" if channels == 3 else f" Its {channels} channels are averaged." * (channels > 1)
    if filters.are_summed:
        colours = " The training images are grey, so the channels of a filter are added up."
    note = f"{what} ({filters.layer}). Grey is zero; each is scaled to its own largest value.{colours}"
    factor = max(1, TILE_PX // max(height, width))
    values = kernels.double().numpy().repeat(factor, axis=2).repeat(factor, axis=3)

    def draw(axes: Axes, inks: Inks) -> None:
        show_tiles(axes, set_in_rows(as_colours(values), columns, gap=max(1, factor * height // 8)))

    panel = Panel("Filters", "", ("", ""), draw, (0.62 * columns, 0.62 * rows))
    return Group("filters", "Filters", note, [panel])


def _positions_group(tables: Sequence[PositionTable]) -> Group:
    heading = "Position embeddings"
    panels, notes = [], []
    for each in tables:
        title = each.layer if len(tables) > 1 else ""
        note, panel = _positions_panel(each)
        panels.append(panel._replace(name=f"{heading} {title}".strip(), title=title))
        notes.append(note)
    return Group("positions", heading, " ".join(dict.fromkeys(notes)), panels)


def _positions_panel(positions: PositionTable) -> tuple[str, Panel]:
    """Return the caption and the plot of one table."""
    similarity = position_similarity(positions.table)
    if positions.grid is None:
        shown = min(MAX_POSITIONS, len(similarity))
        note = f"Cosine between the embeddings of each two positions of a sequence, the first {shown}."
        values = similarity[:shown, :shown].double().numpy()
        labels = ("position", "position")
    else:
        rows, columns = (spread(length, MAX_TILES) for length in positions.grid)
        note = (
            "Each tile shows the cosine between the embedding of the patch with the indicated row and column "
            f"and those of all {positions.grid[0]} x {positions.grid[1]} patches."
        )
        tiles = similarity.unflatten(0, positions.grid).unflatten(-1, positions.grid)[rows][:, columns]
        values = set_in_rows(tiles.double().numpy().reshape(-1, *positions.grid), len(columns), gap=1)
        labels = ("patch column", "patch row")

    def draw(axes: Axes, inks: Inks) -> None:
        show_map(axes, values, inks, (-1.0, 1.0), "cosine")
        if positions.grid is not None:
            name_tiles(axes, columns, positions.grid[1] + 1, axis="x")
            name_tiles(axes, rows, positions.grid[0] + 1, axis="y")

    return note, Panel("", "", labels, draw, map_size(values))


def _biases_group(biases: Sequence[BiasTable]) -> Group:
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
        name_tiles(axes, list(range(1, num_heads + 1)), width + 1, axis="x")
        name_tiles(axes, list(range(1, len(shown) + 1)), height + 1, axis="y")

    heading = "Relative position biases"
    panel = Panel(heading, "", ("head", "layer"), draw, map_size(values))
    return Group("biases", heading, note, [panel])


DISTANCE_NOTE = (
    "Distance from a query's patch to the patches it attends to, weighted by the attention and averaged over "
    "queries and images; one dot for each head. Attention to tokens that are not patches is left out."
)
ENTROPY_NOTE = (
    "Entropy of a query's attention as a share of what it would be if all keys within its reach got the "
    "same: 1 is even attention, 0 a single key; one dot for each head."
)
HEAD_PLOTS = (
    ("distance", "distance_px", "Attention distance", "mean distance, pixels", DISTANCE_NOTE),
    ("entropy", "entropy_shares", "Head entropy", "entropy (1 = even)", ENTROPY_NOTE),
)
"""File, field, heading, axis and note of what is plotted of each head."""


def _head_groups(heads: HeadFindings) -> list[Group]:
    groups = []
    for key, field, heading, label, note in HEAD_PLOTS:
        layers = [each for each in heads.layers if getattr(each, field) is not None]
        if layers:
            groups.append(Group(key, heading, note, [_dots_panel(field, heading, label, layers)]))
    if heads.groups:
        note = (
            "Share of attention that two heads give to the same keys: one minus the total variation distance "
            f"of their rows, averaged over samples and up to {SIMILAR_QUERIES} evenly spaced queries of each."
        )
        titles = dict(zip([each.layer for each in heads.layers], layer_titles(heads.layers), strict=True))
        panels = []
        for group in heads.groups:
            ends = dict.fromkeys(titles[layer] for layer in (group.layers[0], group.layers[-1]))
            panels.append(_similarity_panel(group, " to ".join(ends) if len(heads.groups) > 1 else ""))
        groups.append(Group("similarity", "Head similarity", note, panels))
    return groups


def _dots_panel(field: str, heading: str, y_label: str, layers: Sequence[LayerHeads]) -> Panel:
    def draw(axes: Axes, inks: Inks) -> None:
        series, highest = series_of(layers), 0.0
        for colour, (name, members) in zip(cycle(COLOURS), series.items(), strict=False):
            points = [
                (depth, value)
                for depth, each in enumerate(members, start=1)
                for value in getattr(each, field)
            ]
            x, y = zip(*points, strict=True)
            highest = max(highest, *y)
            axes.plot(x, y, "o", color=colour, markersize=5, alpha=0.75, markeredgewidth=0, label=name)
        depth = max(map(len, series.values()))
        axes.set_xticks(range(1, depth + 1, -(-depth // MAX_TICKS)))
        axes.set_xlim(0.5, depth + 0.5)
        axes.set_ylim(0, 1.03 if field == "entropy_shares" else 1.08 * max(highest, 1e-6))
        if len(series) > 1:
            axes.legend(frameon=False, labelcolor=inks.ink, fontsize=8)

    return Panel(heading, "", ("layer", y_label), draw, (4.6, 3.3))


def _similarity_panel(group: HeadGroup, title: str) -> Panel:
    values = group.similarity.double().numpy()
    edges = np.concatenate(([0], np.cumsum(group.num_heads)))

    def draw(axes: Axes, inks: Inks) -> None:
        show_map(axes, values, inks, (0.0, 1.0), "overlap")
        for edge in edges[1:-1]:
            axes.axhline(edge - 0.5, color="white", linewidth=0.7)
            axes.axvline(edge - 0.5, color="white", linewidth=0.7)
        centres = (edges[:-1] + edges[1:] - 1) / 2
        names = [str(place) for place in range(1, len(group.layers) + 1)]
        stride = -(-len(names) // MAX_TICKS)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_ticks(centres[::stride], names[::stride])

    label = "heads, layer by layer"
    name = f"Head similarity {title}".strip()
    return Panel(name, title, (label, label), draw, map_size(values))
