"""Plots: as inline SVG whose colours follow the page, light or dark, and on white as PNG, SVG or PDF."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitrail.core.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from PIL import Image

# Stand-ins that matplotlib draws with, and the page's colours that replace them.
INK, SOFT, LINE = "#010203", "#010204", "#010205"
PAGE_COLOURS = {INK: "var(--ink)", SOFT: "var(--soft)", LINE: "var(--line)"}
# Okabe and Ito 2008: told apart by the colour-blind, and legible on white and on black.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")
MORE_COLOURS = (*COLOURS, "#e69f00", "#56b4e9")  # the others of Okabe and Ito 2008
DOTS_PER_INCH = 130
PICTURES = (".png", ".svg", ".pdf")
# Without the time and the program, so that the same plot is the same file.
METADATA: dict[str, dict[str, Any]] = {
    ".png": {"Software": None},
    ".svg": {"Date": None, "Creator": None},
    ".pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
# Text stays text, so that a viewer has the letters that the font of pictures lacks.
VECTOR: Any = {"svg.fonttype": "none", "svg.hashsalt": "vitrail", "pdf.fonttype": 42}
MAX_POINTS = 400

Curve = tuple[Sequence[float], Sequence[float]]
"""Horizontal and vertical values."""


def line_plot(name: str, series: Mapping[str, Curve], *, x_label: str, y_label: str) -> str:
    """Draw curves over whole numbers; few points are marked."""
    from matplotlib.ticker import MaxNLocator

    figure, axes = new_figure(x_label, y_label)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    for colour, (label, (x, y)) in zip(COLOURS, series.items(), strict=False):
        stride = max(1, len(x) // MAX_POINTS)
        axes.plot(
            x[::stride],
            y[::stride],
            color=colour,
            label=label,
            linewidth=1.6,
            marker="o" if len(x) <= 30 else None,
            markersize=3.5,
        )
    if len(series) > 1:
        axes.legend(frameon=False, labelcolor=INK)
    return inline_svg(figure, name)


def bar_plot(
    name: str, values: Mapping[str, float], *, counts: Sequence[int], x_label: str, y_label: str
) -> str:
    """Draw one bar for each group, from zero; groups of few are drawn faintly.

    Args:
        counts: how many each group holds, which stands on its bar.
    """
    figure, axes = new_figure(x_label, y_label)
    most = max(counts)
    for index, (value, count) in enumerate(zip(values.values(), counts, strict=True)):
        bar = axes.bar(index, value, width=0.8, color=COLOURS[0], alpha=opacity_of_count(count, most))
        axes.bar_label(bar, labels=[f"{count:,}"], padding=2, fontsize=8, color=SOFT)
    axes.set_xticks(range(len(values)), list(values), rotation=45 if len(values) > 6 else 0)
    axes.grid(visible=False, axis="x")
    axes.margins(y=0.1)  # room for the counts
    return inline_svg(figure, name)


def confusion_plot(name: str, confusion: Sequence[Sequence[int]]) -> str:
    """Draw a confusion matrix of many classes as shares of each row, by logarithm so that errors show."""
    import numpy as np
    from matplotlib.colors import LogNorm

    counts = np.asarray(confusion, dtype=float)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    figure, axes = new_figure("predicted class", "true class", size=(6.4, 6.0))
    axes.grid(visible=False)
    drawn = axes.imshow(
        np.ma.masked_equal(shares, 0), norm=LogNorm(1e-3, 1), cmap="viridis", interpolation="nearest"
    )
    bar = figure.colorbar(drawn, ax=axes, shrink=0.8)
    bar.ax.tick_params(colors=SOFT, labelcolor=INK)
    bar.outline.set_visible(False)
    return inline_svg(figure, name)


def new_figure(x_label: str, y_label: str, size: tuple[float, float] = (4.2, 2.9)) -> tuple[Figure, Axes]:
    """Return a figure with one plot in the page's colours, for ``inline_svg``; width and height in inches."""
    # A figure of its own, not pyplot's: nothing global is touched and nothing has to be closed.
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    figure.patch.set_alpha(0)
    axes = figure.add_subplot()
    axes.patch.set_alpha(0)
    axes.set_xlabel(x_label, color=INK)
    axes.set_ylabel(y_label, color=INK)
    axes.tick_params(colors=SOFT, labelcolor=INK)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(SOFT)
    axes.grid(color=LINE, linewidth=0.8)
    axes.set_axisbelow(True)
    return figure, axes


def inline_svg(figure: Figure, name: str) -> str:
    """Write a figure as an element of a page.

    Args:
        figure: drawn with the stand-ins for the page's colours.
        name: alternative text, different from that of any other picture of the page.
    """
    import matplotlib

    buffer = io.StringIO()
    # Several pictures in one page must not share the names of their parts, and a page must repeat.
    with matplotlib.rc_context(VECTOR | {"font.family": "sans-serif", "svg.hashsalt": name}):
        figure.savefig(buffer, format="svg", metadata=METADATA[".svg"])
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    for stand_in, colour in PAGE_COLOURS.items():
        svg = svg.replace(stand_in, colour)
    prefix = re.sub(r"\W+", "-", name)
    svg = re.sub(r'\bid="', f'id="{prefix}-', svg)
    svg = re.sub(r'(href="#|url\(#)', rf"\1{prefix}-", svg)
    svg = svg.replace("'DejaVu Sans', ", "").replace("DejaVu Sans", "system-ui")
    return svg.replace("<svg ", f'<svg role="img" aria-label="{escape(name)}" ', 1)


def opacity_of_count(count: int, most: int) -> float:
    """Return the opacity of a group's bar: groups of few say little, and are drawn faintly."""
    return 0.25 + 0.65 * (count / most) ** 0.5


def is_picture(path: Path) -> bool:
    """Return whether a file name is that of a plot: .png, .svg or .pdf."""
    return path.suffix.lower() in PICTURES


def check_picture_path(path: Path, *, others: Sequence[str] = (".html", ".htm")) -> None:
    """Raise ConfigError before any work if a name has neither the ending of a plot nor one of the others."""
    if not is_picture(path) and path.suffix.lower() not in others:
        known = [*(other for other in others if other not in ("", ".htm")), *PICTURES]
        raise ConfigError(
            f"the result was to be written to {path}",
            expected=f"a name that ends in {', '.join(known[:-1])} or {known[-1]}"
            + (", or one without a suffix for a folder" if "" in others else ""),
            remedy=("Choose .html for a page with its tables, " if ".html" in others else "Choose ")
            + ".png for pixels, .svg or .pdf for lines that stay sharp",
        )


def white_figure(width: float, height: float, title: str) -> Figure:
    """Return an empty figure with a title, if any; sizes in inches."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained", facecolor="white")
    if title:
        figure.suptitle(title, fontsize=10)
    return figure


def frame(axes: Axes, x_label: str, y_label: str) -> None:
    """Label axes, with a faint grid instead of a box."""
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(linewidth=0.5, alpha=0.5)
    axes.set_axisbelow(True)


def to_picture(figure: Figure, suffix: str = ".png", *, dots_per_inch: int = DOTS_PER_INCH) -> bytes:
    """Return a figure as a file with one of the endings ``PICTURES``, the same bytes at every call."""
    import matplotlib

    buffer, suffix = io.BytesIO(), suffix.lower()
    with matplotlib.rc_context(VECTOR):
        figure.savefig(buffer, format=suffix[1:], dpi=dots_per_inch, metadata=METADATA[suffix])
    return buffer.getvalue()


def pixel_figure(picture: Image.Image) -> Figure:
    """Return a figure that is a picture, pixel by pixel, for formats that Pillow does not write."""
    figure = white_figure(picture.width / DOTS_PER_INCH, picture.height / DOTS_PER_INCH, "")
    figure.set_layout_engine("none")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    axes.imshow(picture, interpolation="none", aspect="auto")
    return figure
