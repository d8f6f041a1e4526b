"""Trainings side by side: one table for the terminal and the page, and one picture."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from vitrail.config import Config
from vitrail.duration import format_duration
from vitrail.report.page import section, table, write_page
from vitrail.report.plots import COLOURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STYLE = "section img{width:100%;border-radius:9px}.failed{color:var(--bad)}"


class Figures(Config):
    """What one training came to."""

    accuracy: float
    """Share of the test images that were classified correctly."""
    accuracy_lower: float
    """Lower end of its 95 % interval."""
    accuracy_upper: float
    """Upper end of its 95 % interval."""
    parameters: int
    """Learned numbers of the model."""
    macs: int
    """Multiplications of one image's forward pass, as the model's card counts them."""
    samples_per_s: float
    """Training samples a second: the median over the training, without validation and saving."""
    peak_memory_mib: float | None
    """Most memory that the training process held; None where nobody counts it."""
    steps: int
    """Optimiser steps that the budget allowed."""
    training_s: float
    """Time of the steps, validations and checkpoints."""


class ComparedRun(Config):
    """One of the trainings that are compared."""

    name: str
    """The mixer or the model."""
    folder: str | None = None
    """Its run directory, within the comparison's folder."""
    figures: Figures | None = None
    """None until it is finished."""
    error: str = ""
    """Why it failed, if it did."""


UNEVEN = 3.0  # times the steps of the run with the fewest; training speeds of mixers differ by less


class Comparison(Config):
    """Everything that ``comparison.json`` holds."""

    kind: Literal["mixer", "model"]
    """What differs between the runs."""
    data: str
    """What all were trained on."""
    budget_s: float
    """Wall-clock time of each run, in seconds."""
    seed: int | None = None
    """Seed of all runs, if one was given."""
    changes: Mapping[str, Any] = Field(default_factory=dict)
    """Settings that all runs share, by their dotted paths."""
    runs: tuple[ComparedRun, ...] = ()
    """One for each mixer or model, in the order in which they are trained."""

    def ranked(self) -> list[ComparedRun]:
        """Return the finished runs by falling accuracy, then the others."""
        return sorted(self.runs, key=lambda run: -run.figures.accuracy if run.figures else 1.0)


def comparison_table(comparison: Comparison) -> tuple[list[str], list[list[str]]]:
    """Return the header and the rows of the table, the most accurate run first."""
    header = [comparison.kind, "accuracy", "steps", "parameters", "MACs", "samples/s", "peak MiB"]
    return header, [[run.name, *_cells(run)] for run in comparison.ranked()]


def write_comparison(path: Path, comparison: Comparison) -> None:
    """Write the page: the picture, the table, and links to the reports of the runs beside it.

    Raises:
        CheckpointError: the disk is full or not writable.
    """
    finished = [run for run in comparison.ranked() if run.figures is not None]
    failed = [run for run in comparison.runs if run.error]
    header, rows = comparison_table(comparison)
    title = f"{comparison.kind}s on {Path(comparison.data).name}".capitalize()
    parts = [f"<h1>{escape(title)}</h1><p>{escape(_conditions(comparison))}</p>"]
    if finished:
        source = base64.b64encode(draw_comparison(finished)).decode()
        picture = f'<img src="data:image/png;base64,{source}" alt="The figures of the table as bars">'
        note = "The most accurate first; whiskers are 95 % intervals over the test images."
        parts.append(section("At a glance", picture, note))
    note = (
        "MACs are the multiplications of one image's forward pass in convolutions, linear layers, attention "
        "and recurrent layers; means and Fourier transforms count as none."
    )
    parts.append(section("Table", table(header, rows, frozenset(range(1, len(header)))), note))
    if failed:
        lines = "".join(
            f"<p class=failed><b>{escape(run.name)}</b>: {escape(run.error)}</p>" for run in failed
        )
        parts.append(section("Failed", lines))
    if finished:
        links = ", ".join(
            f'<a href="{escape(f"{run.folder}/report.html", quote=True)}">{escape(run.name)}</a>'
            for run in finished
        )
        parts.append(section("Reports", f"<p>{links}</p>"))
    write_page(path, title=title, body="\n".join(parts), style=STYLE)


def draw_comparison(runs: Sequence[ComparedRun]) -> bytes:
    """Draw one row of bars for each finished run and one column for each figure, as PNG."""
    from matplotlib.figure import Figure

    panels: list[tuple[str, Callable[[Figures], float]]] = [
        ("parameters, thousand", lambda figures: figures.parameters / 1e3),
        ("MACs, million", lambda figures: figures.macs / 1e6),
        ("samples/s", lambda figures: figures.samples_per_s),
        ("peak memory, MiB", lambda figures: figures.peak_memory_mib or 0.0),
    ]
    all_figures = [run.figures for run in runs if run.figures is not None]
    rows = range(len(runs))
    figure = Figure(figsize=(12.0, 0.36 * len(runs) + 1.1), layout="constrained", facecolor="white")
    first, *others = figure.subplots(1, 1 + len(panels), sharey=True)
    _draw_accuracies(first, all_figures)
    first.set_yticks(rows, [run.name for run in runs])
    first.set_ylim(len(runs) - 0.5, -0.5)
    for axes, (label, read) in zip(others, panels, strict=True):
        values = [read(figures) for figures in all_figures]
        bars = axes.barh(rows, values, color=COLOURS[0], height=0.62)
        labels = [f"{value:,.3g}" if value < 100 else f"{value:,.0f}" for value in values]
        axes.bar_label(bars, labels=labels, padding=2, fontsize=8)
        axes.set_xlabel(label)
        axes.margins(x=0.3)  # room for the numbers
    for axes in (first, *others):
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_axisbelow(True)
        axes.grid(axis="x", linewidth=0.5, alpha=0.5)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=130, metadata={"Software": None})
    return buffer.getvalue()


def _draw_accuracies(axes: Axes, all_figures: Sequence[Figures]) -> None:
    """Draw points and not bars: bars would have to begin at zero, and hide small differences."""
    accuracies = [100 * figures.accuracy for figures in all_figures]
    below = [100 * (figures.accuracy - figures.accuracy_lower) for figures in all_figures]
    above = [100 * (figures.accuracy_upper - figures.accuracy) for figures in all_figures]
    rows = range(len(all_figures))
    axes.errorbar(accuracies, rows, xerr=[below, above], fmt="o", color=COLOURS[1], capsize=2, markersize=5)
    for row, accuracy in zip(rows, accuracies, strict=True):
        axes.annotate(
            f"{accuracy:.1f}",
            (accuracy, row),
            xytext=(0, 4),
            textcoords="offset points",
            fontsize=8,
            ha="center",
        )
    axes.set_xlabel("accuracy, %")


def format_count(count: float) -> str:
    """Write a great number with three digits.

    >>> format_count(1_234_567), format_count(98_700_000_000), format_count(512)
    ('1.23 M', '98.7 G', '512')
    """
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= size:
            digits = 2 if count < 10 * size else 1 if count < 100 * size else 0
            return f"{count / size:.{digits}f} {unit}"
    return f"{count:.0f}"


def _cells(run: ComparedRun) -> list[str]:
    figures = run.figures
    if figures is None:
        return ["failed" if run.error else "-", *"-----"]
    memory = "-" if figures.peak_memory_mib is None else f"{figures.peak_memory_mib:,.0f}"
    speed = f"{figures.samples_per_s:,.0f}"
    accuracy, steps = f"{figures.accuracy:.1%}", f"{figures.steps:,}"
    return [accuracy, steps, f"{figures.parameters:,}", format_count(figures.macs), speed, memory]


def _conditions(comparison: Comparison) -> str:
    parts = [f"Each {comparison.kind} was trained for {format_duration(comparison.budget_s)}"]
    if comparison.seed is not None:
        parts.append(f"with seed {comparison.seed}")
    parts += [f"{path}={value}" for path, value in comparison.changes.items()]
    text = ", ".join(parts) + ", everything included, one after the other on the same machine."
    steps = [run.figures.steps for run in comparison.runs if run.figures is not None]
    if steps and max(steps) > UNEVEN * min(steps):
        text += (
            f" The runs had {min(steps):,} to {max(steps):,} steps: with so short a budget, start-up and "
            "speed decide more than the architecture. Give a longer one."
        )
    return text
