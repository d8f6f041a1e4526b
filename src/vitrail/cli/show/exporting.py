"""What an export did, and what was measured against the model that it was made of."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from textwrap import wrap
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from vitrail.cli.show.lines import MAX_WIDTH, make_table, show_lines

if TYPE_CHECKING:
    from vitrail.engines.export.package import Comparison, Package


def show_stage(stage: str) -> None:
    """Write to the error stream what is being done."""
    lines = wrap(f"vitrail: {stage}", MAX_WIDTH, subsequent_indent="  ", break_long_words=False)
    sys.stderr.write("".join(f"{line}\n" for line in lines))
    sys.stderr.flush()


def show_package(package: Package) -> None:
    """Write where a package lies, what it takes, and how it compares with the model in torch."""
    show_lines([str(package.folder)])
    table = make_table("", "")
    table.show_header = False
    for label, text in _rows(package):
        table.add_row(label, Text(text))
    console = Console(width=MAX_WIDTH) if not sys.stdout.isatty() else Console()
    console.print(table)


def _rows(package: Package) -> Iterator[tuple[str, str]]:
    name = package.model_settings.get("name", "a model")
    yield "model", f"{name}, {package.format}, {package.precision}"
    for label, ports in (("takes", package.inputs), ("gives", package.outputs)):
        shapes = (f"{port.name} {' x '.join(map(str, port.axes))}" for port in ports)
        multiple = max(port.multiple_of for port in ports)
        note = f" (height and width in multiples of {multiple})" if multiple > 1 else ""
        yield label, f"{', '.join(shapes)}{note}"
    yield from _compared(package.comparison, package)


def _compared(found: Comparison, package: Package) -> Iterator[tuple[str, str]]:
    is_generated = found.num_scored == 0  # their title says how many there are
    number = "" if is_generated else f"{found.num_images:,} images of "
    yield "compared on", f"{number}{found.images}"
    within = f"{package.tolerance:.1e}"
    greatest, mean = f"{found.largest_logit_difference:.1e}", f"{found.mean_logit_difference:.1e}"
    bound = "the greatest" if package.precision == "float32" else "the mean"
    yield "logits differ", f"by {greatest} at most, {mean} on average ({bound} may by {within})"
    if found.largest_box_difference is not None:
        yield "boxes differ", _boxes_differ(found, package.box_tolerance, bound)
    of_what = "boxes" if package.task == "detection" else "images"
    yield "best class", f"the same of {100 * found.top1_agreement:.2f} % of the {of_what}"
    for name, pair in found.scores.items():
        points = "" if name == "nll" else f" ({100 * (pair.export - pair.model):+.2f} points)"
        yield name, f"{pair.model:.4f} in torch, {pair.export:.4f} exported{points}"


def _boxes_differ(found: Comparison, box_tolerance: float | None, bound: str) -> str:
    assert found.largest_box_difference is not None, "of a detector"
    text = f"by {100 * found.largest_box_difference:.2g} % of the image at most"
    if found.mean_box_difference is not None:
        text += f", {100 * found.mean_box_difference:.2g} % on average"
    return text if box_tolerance is None else f"{text} ({bound} may by {100 * box_tolerance:.2g} %)"
