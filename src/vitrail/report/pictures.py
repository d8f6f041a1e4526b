"""Pictures on white as PNG files, beside the plots of pages."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

from vitrail.core.errors import ConfigError
from vitrail.report.plots import COLOURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MORE_COLOURS = (*COLOURS, "#e69f00", "#56b4e9")  # the others of Okabe and Ito 2008
DOTS_PER_INCH = 130


def check_picture_path(path: Path) -> None:
    """Raise ConfigError before any work if the name ends neither in .html nor in .png."""
    if path.suffix.lower() not in (".html", ".htm", ".png"):
        raise ConfigError(
            f"the result was to be written to {path}",
            expected="a name that ends in .html or .png",
            remedy="Choose .html for a page with its tables, .png for the picture alone",
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


def to_png(figure: Figure) -> bytes:
    """Return a figure as a PNG file, the same bytes at every call."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DOTS_PER_INCH, metadata={"Software": None})
    return buffer.getvalue()
