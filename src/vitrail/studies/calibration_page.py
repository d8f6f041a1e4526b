"""The calibration of a classifier as a page or a picture: both reliability diagrams and the scores."""

from __future__ import annotations

import io
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from vitrail.core.durable import atomic_write
from vitrail.core.errors import ConfigError
from vitrail.report.page import section, table, write_page
from vitrail.report.plots import COLOURS, reliability_plot
from vitrail.tasks.classification.calibration import CalibrationScores

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DOTS_PER_INCH = 130
STYLE = ".pair{display:flex;flex-wrap:wrap;gap:18px}.pair svg{max-width:100%;height:auto}"
HEADER = ("", "as it is", "temperature")
NOTE = (
    "Bars below the diagonal are answers that the model is surer of than it is right; the fewer images, the "
    "fainter the bar. One temperature for all logits changes no answer: the accuracy stays."
)


def check_picture_path(path: Path) -> None:
    """Refuse a name that ends neither in .html nor in .png, before anything is measured.

    Raises:
        ConfigError: it does not.
    """
    if path.suffix.lower() not in (".html", ".htm", ".png"):
        raise ConfigError(
            f"the result was to be written to {path}",
            expected="a name that ends in .html or .png",
            remedy="Choose .html for a page with its table, .png for the picture alone",
        )


def score_rows(before: CalibrationScores, after: CalibrationScores) -> list[list[str]]:
    """Return the table's texts: a score, its value without and with the temperature."""
    names = {
        "accuracy": "accuracy",
        "confidence": "mean confidence",
        "calibration_error": "expected calibration error",
        "max_calibration_error": "largest calibration error",
        "brier": "Brier score",
        "nll": "negative log likelihood",
    }
    return [
        [text, f"{getattr(before, name):.4f}", f"{getattr(after, name):.4f}"] for name, text in names.items()
    ]


def write_calibration(
    path: Path,
    before: CalibrationScores,
    after: CalibrationScores,
    *,
    temperature: float,
    title: str,
    signature: str,
) -> None:
    """Write a page with diagrams and table, or for a name that ends in .png a picture of the diagrams.

    Args:
        path: the file.
        before: of the model as it is.
        after: with the temperature.
        temperature: what the logits were divided by.
        title: plain text.
        signature: what was measured, on one line.

    Raises:
        ConfigError: the name ends otherwise.
        CheckpointError: the disk is full or not writable; a former file is as it was.
    """
    check_picture_path(path)
    panels = (("as it is", before), (f"temperature {temperature:.3f}", after))
    if path.suffix.lower() == ".png":
        atomic_write(path, _png(panels, title=title))
        return
    plots = "".join(
        f"<figure>{reliability_plot(f'reliability {name}', scores.bins)}"
        f'<figcaption class="soft small">{escape(name)}: calibration error '
        f"{scores.calibration_error:.4f}</figcaption></figure>"
        for name, scores in panels
    )
    body = (
        f'<h1>{escape(title)}</h1><p class="soft small">{escape(signature)}</p>'
        + section("Reliability", f'<div class="pair">{plots}</div>', NOTE)
        + section("Scores", table(HEADER, score_rows(before, after), frozenset((1, 2))))
    )
    write_page(path, title=title, body=body, style=STYLE)


def _png(panels: Sequence[tuple[str, CalibrationScores]], *, title: str) -> bytes:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.4, 4.0), layout="constrained", facecolor="white")
    figure.suptitle(title, fontsize=10)
    for axes, (name, scores) in zip(figure.subplots(1, len(panels), sharey=True), panels, strict=True):
        _draw(axes, scores)
        axes.set_title(f"{name}: calibration error {scores.calibration_error:.4f}", fontsize=9)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DOTS_PER_INCH, metadata={"Software": None})
    return buffer.getvalue()


def _draw(axes: Axes, scores: CalibrationScores) -> None:
    """Draw accuracy above confidence, and how many images each bin has as the colour's strength."""
    filled = [entry for entry in scores.bins if entry.count]
    most = max(entry.count for entry in filled)
    axes.plot([0, 1], [0, 1], color="#777777", linewidth=1, linestyle="--", label="calibrated")
    for entry in filled:
        axes.bar(
            (entry.lower + entry.upper) / 2,
            entry.accuracy,
            width=(entry.upper - entry.lower) * 0.92,
            color=COLOURS[0],
            alpha=0.25 + 0.65 * (entry.count / most) ** 0.5,
        )
    axes.plot(
        [entry.confidence for entry in filled],
        [entry.accuracy for entry in filled],
        color=COLOURS[1],
        marker="o",
        markersize=4,
        linewidth=0,
        label="mean of the bin",
    )
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1.02)
    axes.set_xlabel("confidence")
    axes.set_ylabel("accuracy")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8, loc="upper left")
