"""The perturbation test of explanations as a page: its curves, and the areas under them with intervals."""

from __future__ import annotations

import io
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from vitrail.core.durable import atomic_write
from vitrail.core.errors import ConfigError
from vitrail.interpret.faithfulness import RANDOM, REFERENCES, Faithfulness
from vitrail.interpret.perturbation import Interval
from vitrail.report.page import section, table, write_page
from vitrail.report.plots import INK, SOFT, inline_svg, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito 2008, told apart by the colour-blind; the order of no meaning is grey.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
DOTS_PER_INCH = 130
NAMES = {
    "relevance": "class relevance",
    "gradient_input": "gradient x input",
    "integrated_gradients": "integrated gradients",
    RANDOM: "random order",
}
STYLE = ".pair{display:flex;flex-wrap:wrap;gap:18px}.pair svg{max-width:100%;height:auto}"
NOTE = (
    "Of each image, its most probable class is explained. Deletion covers the cells that a method names "
    "first, and a good map makes the probability fall fast; insertion shows them first on a covered image, "
    "and a good map makes it rise fast."
)


def check_faithfulness_path(path: Path) -> None:
    """Refuse a name that ends neither in .html nor in .png, before anything is measured.

    Raises:
        ConfigError: it does not.
    """
    if path.suffix.lower() not in (".html", ".htm", ".png"):
        raise ConfigError(
            f"the result was to be written to {path}",
            expected="a name that ends in .html or .png",
            remedy="Choose .html for curves and table, .png for the curves alone",
        )


def write_faithfulness(path: Path, found: Faithfulness, *, title: str) -> None:
    """Write a page with curves and table, or for a name that ends in .png a picture of the curves.

    Args:
        path: the file.
        found: what was measured.
        title: plain text.

    Raises:
        ConfigError: the name ends otherwise.
        CheckpointError: the disk is full or not writable; a former file is as it was.
    """
    check_faithfulness_path(path)
    if path.suffix.lower() == ".png":
        atomic_write(path, faithfulness_png(found, title=title))
    else:
        write_faithfulness_page(path, found, title=title)


def write_faithfulness_page(path: Path, found: Faithfulness, *, title: str) -> None:
    """Write one file with the curves, and a table of the areas under them with 95 % intervals.

    Args:
        path: the HTML file.
        found: what was measured.
        title: plain text.

    Raises:
        CheckpointError: the disk is full or not writable; a former page is as it was.
    """
    rows, columns = found.grid
    how = f"{found.num_images} images, {rows} x {columns} cells, covered with {_filling(found.filling)}."
    curves = f'<div class="pair">{_curves(found, "deletion")}{_curves(found, "insertion")}</div>'
    body = (
        f'<h1>{escape(title)}</h1><p class="soft">{escape(how)}</p>'
        + section("Probability of the class", curves, NOTE)
        + section(
            "Area under the curves",
            table(header(found), table_rows(found), frozenset(range(1, len(header(found))))),
            "Means over images with 95 % bootstrap intervals; the differences are paired by image.",
        )
    )
    write_page(path, title=title, body=body, style=STYLE)


def faithfulness_png(found: Faithfulness, *, title: str) -> bytes:
    """Draw both families of curves beside each other, on white."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.2, 3.6), layout="constrained", facecolor="white")
    figure.suptitle(title, fontsize=10)
    for axes, kind in zip(figure.subplots(1, 2), ("deletion", "insertion"), strict=True):
        _draw(axes, found, kind, soft="#777777")
        axes.set_xlabel(_x_label(kind))
        axes.set_ylabel("probability of the class")
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(linewidth=0.5, alpha=0.5)
        axes.legend(frameon=False, fontsize=8)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DOTS_PER_INCH, metadata={"Software": None})
    return buffer.getvalue()


def header(found: Faithfulness) -> list[str]:
    """Return the names of the table's columns."""
    references = [name for name in REFERENCES if name in found.deletion]
    return ["method", "deletion", *(f"against {name}" for name in references), "insertion"]


def table_rows(found: Faithfulness) -> list[list[str]]:
    """Return the table's texts, the method of the lowest deletion first."""
    references = [name for name in REFERENCES if name in found.deletion]
    return [
        [
            NAMES.get(score.method, score.method),
            _text(score.deletion),
            *(
                _text(score.deletion_against[name], sign="+") if name in score.deletion_against else ""
                for name in references
            ),
            _text(score.insertion),
        ]
        for score in found.scores()
    ]


def _text(interval: Interval, sign: str = "") -> str:
    return " ".join(
        (f"{interval.mean:{sign}.3f}", f"({interval.lower:{sign}.3f} to {interval.upper:{sign}.3f})")
    )


def _curves(found: Faithfulness, kind: str) -> str:
    figure, axes = new_figure(_x_label(kind), "probability of the class", size=(4.6, 3.3))
    _draw(axes, found, kind, soft=SOFT)
    axes.legend(frameon=False, labelcolor=INK, fontsize=8)
    return inline_svg(figure, f"{kind} curves of the methods")


def _draw(axes: Axes, found: Faithfulness, kind: str, *, soft: str) -> None:
    of_methods = found.deletion if kind == "deletion" else found.insertion
    percent = 100 * np.asarray(found.shares)
    colours = iter(COLOURS)
    for name, curves in of_methods.items():
        is_random = name == RANDOM
        axes.plot(
            percent,
            curves.mean(axis=0),
            color=soft if is_random else next(colours),
            linestyle="--" if is_random else "-",
            linewidth=1.6,
            label=NAMES.get(name, name),
        )
    axes.set_ylim(0, 1.02)


def _x_label(kind: str) -> str:
    return "cells covered, %" if kind == "deletion" else "cells shown, %"


def _filling(filling: str) -> str:
    return "the image itself, blurred" if filling == "blur" else "the mean colour of the data"
