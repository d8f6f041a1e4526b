"""What a model has learned as files: a page, one picture of all panels, or a folder of both."""

from __future__ import annotations

import io
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from vitrail.core.durable import atomic_write
from vitrail.core.errors import ConfigError
from vitrail.interpret.learned import HeadFindings, Learned
from vitrail.report.page import section, table, write_page
from vitrail.report.plots import INK, SOFT, inline_svg, new_figure
from vitrail.report.tiles import Inks
from vitrail.studies.learned_panels import Panel, list_panels, series_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PAGE_NAME = "learned.html"  # in a folder
ON_WHITE = Inks("#1b1f27", "#5c6675")
DOTS_PER_INCH = 130
STYLE = """.sections{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,440px),1fr));gap:18px}
.sections section{margin:0}.wide{grid-column:1/-1}
.panels{display:flex;flex-wrap:wrap;gap:22px;align-items:flex-start}
.panels figure{max-width:100%;flex:0 1 auto}.panels svg{width:var(--wide);max-width:100%}
svg image{image-rendering:pixelated}"""
PIXELS_PER_INCH = 96


def check_learned_path(path: Path) -> None:
    """Check the output path before any work.

    Raises:
        ConfigError: the suffix is unknown, or a folder is in the place of a file, or the reverse.
    """
    if path.suffix.lower() not in (".html", ".htm", ".png", ""):
        raise ConfigError(
            f"the result was to be written to {path}",
            expected="a name that ends in .html or .png, or one without a suffix for a folder of both",
            remedy="Choose .html for the page, .png for one picture of all panels",
        )
    if path.exists() and path.is_dir() != (path.suffix == ""):
        raise ConfigError(
            f"{path} is {'a folder' if path.is_dir() else 'a file'} already",
            expected="a name that is free, or of what may be replaced",
            remedy="Choose another output",
        )


def write_learned(path: Path, found: Learned, *, title: str) -> list[Path]:
    """Write a page, a picture of all panels, or a folder with the page and a picture of each panel.

    Args:
        path: ends in .html or .png, or has no suffix and names a folder.

    Returns:
        The written files.

    Raises:
        ConfigError: as ``check_learned_path``.
        CheckpointError: the disk is full or not writable; former files are as they were.
    """
    check_learned_path(path)
    panels = list_panels(found)
    if path.suffix.lower() == ".png":
        atomic_write(path, _png_of_all(panels, title))
        return [path]
    if path.suffix:
        _write_page(path, found, panels, title)
        return [path]
    path.mkdir(parents=True, exist_ok=True)
    _write_page(path / PAGE_NAME, found, panels, title)
    pictures = {path / f"{panel.key}.png": panel for panel in panels}
    for picture, panel in pictures.items():
        atomic_write(picture, _png_of_one(panel))
    return [path / PAGE_NAME, *pictures]


def layer_rows(heads: HeadFindings) -> list[list[str]]:
    """Return the rows of the layer table: depth, name, heads, distance, entropy share, entropy in nats."""
    depths = {
        each.layer: depth
        for members in series_of(heads.layers).values()
        for depth, each in enumerate(members)
    }
    return [
        [
            str(depths[each.layer]),
            each.layer,
            str(len(each.entropy)),
            _range(each.distance_px, ".1f"),
            _range(each.entropy_shares, ".2f"),
            _range(each.entropy, ".2f"),
        ]
        for each in heads.layers
    ]


LAYER_HEADER = ("layer", "name", "heads", "distance, px", "entropy / largest", "entropy, nats")


def layer_table(heads: HeadFindings) -> tuple[list[str], list[list[str]]]:
    """Return header and rows of the layer table, without empty columns."""
    rows = layer_rows(heads)
    filled = [place for place in range(len(LAYER_HEADER)) if any(row[place] for row in rows)]
    return [LAYER_HEADER[place] for place in filled], [[row[place] for place in filled] for row in rows]


def measured_on(heads: HeadFindings) -> str:
    """Return a sentence about the data that heads were measured on."""
    said = f"Heads are measured on {heads.num_samples} of the {heads.origin}"
    if heads.image_size is not None:
        said += f", {heads.image_size[1]} x {heads.image_size[0]} pixels"
    if heads.num_unreadable:
        said += f"; {heads.num_unreadable} that could not be read were passed over"
    if heads.not_measured:
        said += f"; {len(heads.not_measured)} layers are left out, as their weights do not sum to one"
    return f"{said}."


def reasons(found: Learned) -> list[tuple[str, str]]:
    """Return what is left out and why, one line per reason."""
    by_reason: dict[str, list[str]] = {}
    for name, reason in found.left_out.items():
        by_reason.setdefault(reason, []).append(name)
    return [(", ".join(names), f"{reason}.") for reason, names in by_reason.items()]


def _write_page(path: Path, found: Learned, panels: list[Panel], title: str) -> None:
    facts = f"{found.model}. " + (measured_on(found.heads) if found.heads is not None else "")
    parts = [f'<h1>{escape(title)}</h1><p class="soft">{escape(facts)}</p>']
    sections = []
    for heading in dict.fromkeys(panel.heading for panel in panels):
        of_section = [panel for panel in panels if panel.heading == heading]
        figures = "".join(map(_figure, of_section))
        note = " ".join(dict.fromkeys(panel.note for panel in of_section))
        framed = section(heading, f'<div class="panels">{figures}</div>', note)
        sections.append(f'<div class="wide">{framed}</div>' if len(of_section) > 1 else framed)
    parts.append(f'<div class="sections">{"".join(sections)}</div>')
    if found.heads is not None:
        header, rows = layer_table(found.heads)
        numbers = frozenset(place for place, name in enumerate(header) if name != "name")
        parts.append(
            section(
                "Layers",
                table(header, rows, numbers),
                "The mean over heads, and the least and the most of them.",
            )
        )
    if found.left_out:
        parts.append(section("Not drawn", table(("", ""), reasons(found))))
    write_page(path, title=title, body="\n".join(parts), style=STYLE)


def _figure(panel: Panel) -> str:
    figure, axes = new_figure(*panel.labels, size=panel.size)
    panel.draw(axes, Inks(INK, SOFT))
    svg = inline_svg(figure, f"{panel.heading} {panel.title}".strip())
    caption = f"<figcaption>{escape(panel.title)}</figcaption>" if panel.title else ""
    wide = round(panel.size[0] * PIXELS_PER_INCH)
    return f'<figure style="--wide:{wide}px">{svg}{caption}</figure>'


def _png_of_one(panel: Panel) -> bytes:
    from matplotlib.figure import Figure

    width, height = panel.size
    figure = Figure(figsize=(width + 0.3, height + 0.4), layout="constrained", facecolor="white")
    _draw_on_white(figure.add_subplot(), panel)
    return _to_png(figure)


def _png_of_all(panels: list[Panel], title: str) -> bytes:
    """Draw the first panel of each section, in rows of three."""
    from matplotlib.figure import Figure

    shown = [
        panel
        for place, panel in enumerate(panels)
        if panel.heading not in {each.heading for each in panels[:place]}
    ]
    columns = min(3, len(shown))
    rows = -(-len(shown) // columns)
    figure = Figure(figsize=(4.8 * columns, 3.9 * rows + 0.4), layout="constrained", facecolor="white")
    figure.suptitle(title, fontsize=11)
    for place, panel in enumerate(shown):
        _draw_on_white(figure.add_subplot(rows, columns, place + 1), panel)
    return _to_png(figure)


def _draw_on_white(axes: Axes, panel: Panel) -> None:
    axes.set_xlabel(panel.labels[0])
    axes.set_ylabel(panel.labels[1])
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(linewidth=0.5, alpha=0.5)
    axes.set_axisbelow(True)
    panel.draw(axes, ON_WHITE)
    axes.set_title(panel.heading + (f"\n{panel.title}" if panel.title else ""), fontsize=10)


def _to_png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DOTS_PER_INCH, metadata={"Software": None})
    return buffer.getvalue()


def _range(values: tuple[float, ...] | None, form: str) -> str:
    """Format the mean of values, with their range if there are several."""
    if values is None:
        return ""
    mean = f"{sum(values) / len(values):{form}}"
    return mean if len(values) == 1 else f"{mean} ({min(values):{form}} to {max(values):{form}})"
