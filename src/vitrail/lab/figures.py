"""Pictures of claims: panels that look alike, on white."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito 2008, told apart by the colour-blind; more of them than a report's plots need.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
DPI = 130


def new_panels(num_panels: int, *, columns: int = 3) -> tuple[Figure, list[Axes]]:
    """Return a figure with so many plots, row by row.

    Args:
        num_panels: how many.
        columns: most plots beside one another.
    """
    # A figure of its own, not pyplot's: nothing global is touched and nothing has to be closed.
    from matplotlib.figure import Figure

    columns = min(columns, num_panels)
    rows = math.ceil(num_panels / columns)
    figure = Figure(figsize=(4.6 * columns, 3.4 * rows), layout="constrained", facecolor="white")
    panels = [figure.add_subplot(rows, columns, place + 1) for place in range(num_panels)]
    for axes in panels:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(linewidth=0.5, alpha=0.5)
        axes.set_axisbelow(True)
    return figure, panels


def label(axes: Axes, *, x: str, y: str, title: str = "") -> None:
    """Name the axes of a panel, and the panel."""
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.set_title(title, fontsize=10)


def to_png(figure: Figure) -> bytes:
    """Return a figure as a PNG file."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI, metadata={"Software": None})
    return buffer.getvalue()


def fit_exponent(x: Sequence[float], y: Sequence[float]) -> float:
    """Return the exponent of the power law through some points: the slope of their logarithms.

    Args:
        x: positive, at least two different ones.
        y: positive, one for each.

    >>> round(fit_exponent([1, 2, 4], [3, 12, 48]), 6)
    2.0
    """
    return float(np.polyfit([math.log(value) for value in x], [math.log(value) for value in y], 1)[0])
