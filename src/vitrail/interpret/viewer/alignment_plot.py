"""Still pictures of what each written piece of a sentence attends to: inline SVG for pages, PNG for files."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import Float
from torch import Tensor

from vitrail.report.plots import COLOURS, LINE, SOFT, inline_svg, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CELL_INCH = 0.19
FONT_SIZE = 8.5
CHARACTER_INCH = 0.068  # mean width of a letter of that size
LONGEST_LABEL = 16  # characters; the page shows whole pieces
MAX_COLUMNS = 3  # panels of a PNG beside each other
DOTS_PER_INCH = 150


class Panel(NamedTuple):
    """One map with the pieces on its axes."""

    title: str
    """Plain text above it; may be empty."""
    weights: Float[Tensor, "queries keys"]
    """Share of each key in what each query reads, 0..1."""
    rows: Sequence[str]
    """The pieces that are written."""
    columns: Sequence[str]
    """The pieces that are read."""


def alignment_svg(name: str, panel: Panel) -> str:
    """Draw a map whose text has the page's colours.

    Args:
        name: what it shows, for those who cannot see it; no other picture of the page has the same.
        panel: what is drawn.
    """
    with _any_letters():
        figure, axes = new_figure("", "", size=_size(panel))
        axes.grid(visible=False)
        _draw(axes, panel, ink=None)
        return inline_svg(figure, name)


def alignment_png(panels: Sequence[Panel]) -> bytes:
    """Draw maps of the same pieces beside and below each other, on white.

    Args:
        panels: at least one.
    """
    from matplotlib.figure import Figure

    columns = min(MAX_COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    width, height = _size(panels[0])
    figure = Figure(figsize=(columns * width, rows * height), layout="constrained", facecolor="white")
    buffer = io.BytesIO()
    with _any_letters():
        places = figure.subplots(rows, columns, squeeze=False).flatten()
        for axes, panel in zip(places, panels, strict=False):
            _draw(axes, panel, ink="black")
        for axes in places[len(panels) :]:
            axes.set_visible(False)
        figure.savefig(buffer, format="png", dpi=DOTS_PER_INCH, metadata={"Software": None})
    return buffer.getvalue()


def _draw(axes: Axes, panel: Panel, *, ink: str | None) -> None:
    """Draw a map; without ink, its text stays in the colours that the axes have."""
    from matplotlib.colors import LinearSegmentedColormap, PowerNorm, to_rgb

    full = to_rgb(COLOURS[0])
    shades = LinearSegmentedColormap.from_list("shades", [(*full, 0.0), (*full, 1.0)])
    values = np.clip(panel.weights.detach().float().cpu().numpy(), 0, 1)
    # By the root, so that weights of a tenth are seen.
    axes.imshow(values, cmap=shades, norm=PowerNorm(0.5, 0, 1), interpolation="nearest", aspect="equal")
    # A dollar sign in a piece is no formula.
    axes.set_xticks(range(len(panel.columns)), _labels(panel.columns), rotation=90, parse_math=False)
    axes.set_yticks(range(len(panel.rows)), _labels(panel.rows), parse_math=False)
    axes.tick_params(
        top=True, labeltop=True, bottom=False, labelbottom=False, length=2, labelsize=FONT_SIZE, pad=2
    )
    for spine in axes.spines.values():
        spine.set_visible(True)
        spine.set_color(LINE if ink is None else "#c8ced6")
    if panel.title:
        axes.set_title(
            panel.title, fontsize=FONT_SIZE + 1, color=SOFT if ink is None else ink, parse_math=False
        )


def _size(panel: Panel) -> tuple[float, float]:
    """Return width and height in inches that leave every cell its place."""
    left, top = (
        CHARACTER_INCH * max((len(label) for label in _labels(pieces)), default=0) + 0.15
        for pieces in (panel.rows, panel.columns)
    )
    title = 0.25 if panel.title else 0.0
    return (
        left + CELL_INCH * len(panel.columns) + 0.15,
        top + title + CELL_INCH * len(panel.rows) + 0.15,
    )


def _labels(pieces: Sequence[str]) -> list[str]:
    return [piece if len(piece) <= LONGEST_LABEL else piece[: LONGEST_LABEL - 3] + "..." for piece in pieces]


@contextmanager
def _any_letters() -> Iterator[None]:
    """Let letters pass that the font of pictures lacks; they are drawn as boxes, in SVG by the browser."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"Glyph .* missing from", category=UserWarning)
        warnings.filterwarnings(
            "ignore", message=r"Matplotlib currently does not support", category=UserWarning
        )
        yield
