"""A picture of what merging tokens costs and gains."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence

# Okabe and Ito 2008, told apart by the colour-blind.
COLOURS = ("#0072b2", "#d55e00")
DOTS_PER_INCH = 130


def merging_png(curves: Mapping[str, Sequence[tuple[float, float, int]]], *, title: str) -> bytes:
    """Draw accuracy against speed, one curve for each schedule, each point with its number of merged tokens.

    Args:
        curves: for each schedule its points: speed over that without merging, accuracy from 0 to 1, and how
            many tokens vanish in each block.
        title: plain text.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.6, 3.8), layout="constrained", facecolor="white")
    axes = figure.add_subplot()
    for colour, (schedule, points) in zip(COLOURS, curves.items(), strict=False):
        speeds, accuracies = [point[0] for point in points], [100 * point[1] for point in points]
        axes.plot(speeds, accuracies, color=colour, marker="o", markersize=4, linewidth=1.6, label=schedule)
        for speed, accuracy, (_, _, count) in zip(speeds, accuracies, points, strict=True):
            axes.annotate(
                str(count), (speed, accuracy), (4, 4), textcoords="offset points", fontsize=8, color=colour
            )
    axes.set_xlabel("images/s over those without merging")
    axes.set_ylabel("accuracy, %")
    axes.set_title(title, fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(linewidth=0.5, alpha=0.5)
    if len(curves) > 1:
        axes.legend(frameon=False, title="schedule")
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DOTS_PER_INCH, metadata={"Software": None})
    return buffer.getvalue()
