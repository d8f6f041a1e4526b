"""Plots that are drawn twice: in a page's colours, and on white as a PNG, SVG or PDF file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from vitrail.core.durable import atomic_write
from vitrail.report.page import write_page
from vitrail.report.plots import (
    check_picture_path,
    frame,
    inline_svg,
    is_picture,
    new_figure,
    to_picture,
    white_figure,
)
from vitrail.report.sections import plots_in_row
from vitrail.report.tiles import ON_PAGE, ON_WHITE, Inks

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class Panel(NamedTuple):
    """One plot."""

    name: str
    """What it shows, for those who cannot see it; unique on a page."""
    title: str
    """Stands above it; may be empty."""
    labels: tuple[str, str]
    """Axis labels; empty for tiles."""
    draw: Callable[[Axes, Inks], None]
    """Draws into axes whose labels are set."""
    size: tuple[float, float] = (4.2, 2.9)
    """Width and height in inches."""

    def to_svg(self) -> str:
        figure, axes = new_figure(*self.labels, size=self.size)
        self.draw(axes, ON_PAGE)
        return inline_svg(figure, self.name)


def draw_panels(
    panels: Sequence[Panel], suffix: str, *, columns: int, tile: tuple[float, float], title: str = ""
) -> bytes:
    """Draw panels in rows, as a file with that ending; ``tile`` is the width and height of each in inches."""
    columns = min(columns, len(panels))
    rows = -(-len(panels) // columns)
    figure = white_figure(tile[0] * columns, tile[1] * rows + 0.4, title)
    for place, panel in enumerate(panels, start=1):
        axes = figure.add_subplot(rows, columns, place)
        frame(axes, *panel.labels)
        panel.draw(axes, ON_WHITE)
        axes.set_title(panel.title, fontsize=10)
    return to_picture(figure, suffix)


def write_panels(
    path: Path, panels: Sequence[Panel], *, title: str, subtitle: str, body: str, style: str = ""
) -> None:
    """Write a page, or the panels alone as .png, .svg or .pdf.

    Args:
        subtitle: plain text below the title.
        body: HTML of the page after it, with ``conclusions`` first.

    Raises:
        ConfigError: the name ends otherwise.
        CheckpointError: the disk is full or not writable; a former file is as it was.
    """
    check_picture_path(path)
    if is_picture(path):
        atomic_write(path, draw_panels(panels, path.suffix, columns=4, tile=(4.2, 3.3), title=title))
        return
    head = f'<h1>{escape(title)}</h1><p class="soft small">{escape(subtitle)}</p>'
    write_page(path, title=title, body=head + body, style=style)


def join_panels(panels: Sequence[Panel]) -> str:
    """Return panels side by side, with their titles as captions."""
    return plots_in_row(f"{each.to_svg()}<figcaption>{escape(each.title)}</figcaption>" for each in panels)
