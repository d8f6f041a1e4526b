"""Plots of a detector's scores: precision-recall curves, and recall over the threshold."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vitrail.interpret.draw import COLOURS, colour_of, hex_colour
from vitrail.report.plots import INK, SOFT, inline_svg, new_figure
from vitrail.tasks.detection.scores import RECALLS, ClassDetection

MAX_CURVES = len(COLOURS)  # classes with a colour of their own; more are drawn faintly, with their mean


def precision_recall_plot(name: str, classes: Sequence[ClassDetection], names: Sequence[str]) -> str:
    """Draw precision over recall at an IoU of 0.50, for each class that has boxes, and their mean.

    Args:
        name: alternative text of the picture.
        classes: curves of each class.
        names: of the classes.
    """
    import matplotlib.patheffects as effects

    figure, axes = new_figure("recall", "precision", size=(5.2, 3.6))
    known = [(label, entry) for label, entry in enumerate(classes) if entry.precision]
    is_few = len(known) <= MAX_CURVES
    rim = [effects.withStroke(linewidth=2.8, foreground=SOFT)]  # light colours on a light page
    for label, entry in known:
        axes.plot(
            RECALLS,
            entry.precision,
            color=hex_colour(colour_of(label)) if is_few else SOFT,
            alpha=1.0 if is_few else 0.35,
            linewidth=1.8 if is_few else 0.8,
            path_effects=rim if is_few else None,
            label=f"{names[label]} {entry.ap50:.2f}" if is_few else None,
        )
    if len(known) > 1:
        mean = np.mean([entry.precision for _, entry in known], axis=0)
        what = f"mean of {len(known)} classes {mean.mean():.2f}"
        axes.plot(RECALLS, mean, color=INK, linewidth=1.8, linestyle=(0, (4, 2)), label=what)
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1.03)
    if known:
        figure.legend(frameon=False, labelcolor=INK, loc="outside lower left", ncols=2, fontsize=9)
    return inline_svg(figure, name)


def threshold_plot(
    name: str, classes: Sequence[ClassDetection], names: Sequence[str], threshold: float
) -> str:
    """Draw recall over the confidence threshold, for each class.

    Args:
        name: alternative text of the picture.
        classes: curves of each class.
        names: of the classes.
        threshold: the one that reports use, marked.
    """
    import matplotlib.patheffects as effects

    figure, axes = new_figure("least score", "recall", size=(5.2, 3.6))
    known = [(label, entry) for label, entry in enumerate(classes) if entry.precision]
    is_few = len(known) <= MAX_CURVES
    rim = [effects.withStroke(linewidth=2.8, foreground=SOFT)]
    for label, entry in known:
        reached = [
            (score, recall)
            for score, recall, precision in zip(entry.thresholds, RECALLS, entry.precision, strict=True)
            if precision > 0
        ]
        if reached:
            scores, recalls = zip(*reached, strict=True)
            axes.plot(
                scores,
                recalls,
                color=hex_colour(colour_of(label)) if is_few else SOFT,
                alpha=1.0 if is_few else 0.35,
                linewidth=1.8 if is_few else 0.8,
                path_effects=rim if is_few else None,
                label=names[label] if is_few else None,
            )
    axes.axvline(threshold, color=INK, linewidth=1.2, linestyle=(0, (4, 2)), label=f"used: {threshold:.2f}")
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1.03)
    figure.legend(frameon=False, labelcolor=INK, loc="outside lower left", ncols=2, fontsize=9)
    return inline_svg(figure, name)
