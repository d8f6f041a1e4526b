"""What corruptions cost a model, as a page or a picture: curves, errors, and an image under each of them."""

from __future__ import annotations

import io
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from PIL import Image

from vitrail.core.durable import atomic_write
from vitrail.data.corruptions.contract import GROUPS
from vitrail.report.page import picture_uri, section, table, tiles, write_page
from vitrail.report.plots import COLOURS, INK, SOFT, inline_svg, new_figure
from vitrail.studies.calibration_page import check_picture_path
from vitrail.studies.corruption_errors import CorruptionErrors, Robustness

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DOTS_PER_INCH = 130
STYLE = (
    ".pair,.strip{display:flex;flex-wrap:wrap;gap:14px}.pair svg{max-width:100%;height:auto}"
    ".strip figure{margin:0;width:120px}.strip img{width:120px;height:auto;image-rendering:auto}"
)
NOTE = "Share of wrong answers by severity; severity 0 is the image as it is."


class Example(NamedTuple):
    """One picture, as the model is given it."""

    name: str
    """What was done to it."""
    pixels: np.ndarray
    """Uint8 ``3 height width``."""


def table_header(found: Robustness) -> list[str]:
    """Return the names of the table's columns."""
    severities = [str(severity) for severity in found.corruptions[0].errors]
    return ["corruption", *severities, "mean", *(["CE", "rel. CE"] if found.reference else [])]


def table_rows(found: Robustness) -> list[list[str]]:
    """Return the table's texts, errors in percent, the groups in their order and the means last."""
    rows = [
        [
            row.name.replace("_", " "),
            *(_percent(error) for error in row.errors.values()),
            _percent(row.mean),
            *(
                [_percent(row.corruption_error), _percent(row.relative_corruption_error)]
                if found.reference
                else []
            ),
        ]
        for row in found.corruptions
    ]
    blank = [""] * len(found.corruptions[0].errors)
    ratios = [_percent(found.mean_corruption_error), _percent(found.relative_mean_corruption_error)]
    rows.append(["mean", *blank, _percent(found.mean_error), *(ratios if found.reference else [])])
    return rows


def write_robustness(path: Path, found: Robustness, examples: Sequence[Example], *, title: str) -> None:
    """Write a page with curves, table and examples, or for a name that ends in .png the curves alone.

    Args:
        path: the file.
        found: what was measured.
        examples: one image under each corruption.
        title: plain text.

    Raises:
        ConfigError: the name ends otherwise.
        CheckpointError: the disk is full or not writable; a former file is as it was.
    """
    check_picture_path(path)
    if path.suffix.lower() == ".png":
        atomic_write(path, _png(found, title=title))
        return
    signature = "|".join(f"{name}:{value}" for name, value in found.signature.items())
    header = table_header(found)
    strip = "".join(
        f'<figure><img alt="" src="{picture_uri(_image(example), longest=240)}">'
        f'<figcaption class="soft small">{escape(example.name.replace("_", " "))}</figcaption></figure>'
        for example in examples
    )
    body = (
        f'<h1>{escape(title)}</h1><p class="soft small">{escape(signature)}</p>'
        + tiles(_headlines(found))
        + section("Errors", f'<div class="pair">{"".join(map(_panel, _groups(found)))}</div>', NOTE)
        + section(
            "All figures in percent",
            table(header, table_rows(found), frozenset(range(1, len(header)))),
            _reference_note(found),
        )
        + section("One image at severity 3", f'<div class="strip">{strip}</div>')
    )
    write_page(path, title=title, body=body, style=STYLE)


def _headlines(found: Robustness) -> list[tuple[str, str, str]]:
    entries = [
        (f"{_percent(found.clean)} %", "error without corruption", ""),
        (f"{_percent(found.mean_error)} %", "mean error with", "over corruptions and severities"),
    ]
    if found.mean_corruption_error is not None:
        entries.append(
            (
                f"{_percent(found.mean_corruption_error)} %",
                "mCE",
                f"against {found.reference}, less is better",
            )
        )
    return entries


def _reference_note(found: Robustness) -> str:
    if found.reference is None:
        return "Without a reference model there is no corruption error (CE)."
    return (
        f"CE is the mean error divided by that of {found.reference}; the relative CE divides what the "
        "corruption adds to the errors without it."
    )


Group = tuple[str, float, list[CorruptionErrors]]


def _groups(found: Robustness) -> list[Group]:
    by_group = {name: [row for row in found.corruptions if row.group == name] for name in GROUPS}
    return [(name, found.clean, rows) for name, rows in by_group.items() if rows]


def _panel(group: Group) -> str:
    figure, axes = new_figure("severity", "wrong answers, %", size=(4.2, 3.0))
    _draw(axes, group)
    axes.set_title(group[0], color=INK, fontsize=10)
    axes.legend(frameon=False, labelcolor=INK, fontsize=7.5)
    axes.title.set_color(SOFT)
    return inline_svg(figure, f"errors under {group[0]}")


def _draw(axes: Axes, group: Group) -> None:
    _, clean, rows = group
    for colour, row in zip(COLOURS, rows, strict=False):
        axes.plot(
            [0, *row.errors],
            [100 * clean, *(100 * error for error in row.errors.values())],
            color=colour,
            marker="o",
            markersize=3.5,
            linewidth=1.6,
            label=row.name.replace("_", " "),
        )
    axes.set_xticks(range(6))
    axes.set_ylim(0, 102)


def _png(found: Robustness, *, title: str) -> bytes:
    from matplotlib.figure import Figure

    groups = _groups(found)
    figure = Figure(figsize=(3.1 * len(groups), 3.4), layout="constrained", facecolor="white")
    figure.suptitle(title, fontsize=10)
    panels = figure.subplots(1, len(groups), sharey=True, squeeze=False)[0]
    for axes, group in zip(panels, groups, strict=True):
        _draw(axes, group)
        axes.set_title(group[0], fontsize=9)
        axes.set_xlabel("severity")
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(linewidth=0.5, alpha=0.5)
        axes.legend(frameon=False, fontsize=7.5)
    panels[0].set_ylabel("wrong answers, %")
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DOTS_PER_INCH, metadata={"Software": None})
    return buffer.getvalue()


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}"


def _image(example: Example) -> Image.Image:
    return Image.fromarray(np.ascontiguousarray(example.pixels.transpose(1, 2, 0)))
