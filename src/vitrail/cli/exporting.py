"""The command export."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter, validators

from vitrail.cli import show
from vitrail.cli.app import Output, app, finite
from vitrail.core.errors import refuse

if TYPE_CHECKING:
    from vitrail.engines.export.package import Comparison, Package

PositiveNumber = Annotated[float, Parameter(validator=(validators.Number(gt=0), finite))]
Points = Annotated[float, Parameter(validator=(validators.Number(gte=0, lte=100), finite))]


@app.command(help_epilogue="Example: vitrail export runs/photos --format onnx -o photos-onnx")
def export(
    run: str,
    /,
    output: Output = None,
    *,
    format_: Annotated[Literal["onnx", "openvino", "torch", "ctranslate2"], Parameter(name="--format")],
    precision: Literal["float32", "bfloat16", "int8"] | None = None,
    data: str | None = None,
    tolerance: PositiveNumber | None = None,
    box_tolerance: PositiveNumber | None = None,
    allow_accuracy_loss: Points | None = None,
    quantization: str | None = None,
) -> int:
    """Export a trained model for another engine, and verify that both compute the same.

    Args:
        run: A run directory or a checkpoint folder.
        output: New folder. Default: exports/NAME-FORMAT.
        format_: Engine: onnx, openvino or torch for classifiers and detectors, ctranslate2 for
            translators.
        precision: Number type of the matrix products; int8 is calibrated on your images. Default: float32.
        data: Images to compare, calibrate and score with, instead of the run's own data.
        tolerance: Allowed difference of logits: the maximum for float32, else the mean.
        box_tolerance: Detectors only: likewise for box coordinates, as fractions of the image.
        allow_accuracy_loss: Allowed drop of accuracy or average precision, in points. Default: 0.5.
        quantization: ctranslate2 only: number type of the weights, such as int8.
    """
    if format_ == "ctranslate2":
        given = {
            "precision": precision,
            "data": data,
            "tolerance": tolerance,
            "box_tolerance": box_tolerance,
            "allow_accuracy_loss": allow_accuracy_loss,
        }
        refuse(given, "another --format", "Leave it out; --quantization says how weights are stored")
        from vitrail.engines.loading import load_any
        from vitrail.studies.exporting import default_output
        from vitrail.tasks.translation.ctranslate2_export import export_ctranslate2

        folder = output or default_output(run, "ctranslate2", quantization or "float32")
        show.lines(export_ctranslate2(load_any(run), folder, quantization=quantization).to_lines())
        return 0
    refuse({"quantization": quantization}, "--format ctranslate2", "Choose --precision int8")

    from vitrail.engines.export.comparison import DEFAULT_LOSS_POINTS
    from vitrail.studies.exporting import export as export_images

    package = export_images(
        run,
        output,
        export_format=format_,
        precision=precision or "float32",
        data=data,
        tolerance=tolerance,
        box_tolerance=box_tolerance,
        allow_accuracy_loss=DEFAULT_LOSS_POINTS if allow_accuracy_loss is None else allow_accuracy_loss,
        on_stage=show.stage,
    )
    show_package(package)
    return 0


def show_package(package: Package) -> None:
    """Print where a package is, its inputs, and how it compares with the model in torch."""
    show.lines([str(package.folder)])
    show.facts(_rows(package), None if sys.stdout.isatty() else show.MAX_WIDTH)


def _rows(package: Package) -> Iterator[tuple[str, str]]:
    name = package.model_settings.get("name", "a model")
    yield "model", f"{name}, {package.format}, {package.precision}"
    for label, ports in (("input", package.inputs), ("output", package.outputs)):
        shapes = (f"{port.name} {' x '.join(map(str, port.axes))}" for port in ports)
        multiple = max(port.multiple_of for port in ports)
        note = f" (height and width in multiples of {multiple})" if multiple > 1 else ""
        yield label, f"{', '.join(shapes)}{note}"
    yield from _compared(package.comparison, package)


def _compared(found: Comparison, package: Package) -> Iterator[tuple[str, str]]:
    is_generated = found.num_scored == 0  # their title gives the number
    number = "" if is_generated else f"{found.num_images:,} images of "
    yield "compared on", f"{number}{found.images}"
    allowed = "maximum allowed" if package.precision == "float32" else "mean allowed"
    greatest, mean = f"{found.largest_logit_difference:.1e}", f"{found.mean_logit_difference:.1e}"
    yield "logits differ", f"by {greatest} at most, {mean} on average ({allowed}: {package.tolerance:.2g})"
    of_what = "images"
    if found.largest_box_difference is not None and found.mean_box_difference is not None:
        of_what = "boxes"
        greatest, mean, most = (
            f"{100 * (share or 0):.2g} %"
            for share in (found.largest_box_difference, found.mean_box_difference, package.box_tolerance)
        )
        yield "boxes differ", f"by {greatest} of the image at most, {mean} on average ({allowed}: {most})"
    yield "same prediction", f"for {100 * found.top1_agreement:.2f} % of the {of_what}"
    for name, pair in found.scores.items():
        points = "" if name == "nll" else f" ({100 * (pair.export - pair.model):+.2f} points)"
        yield name, f"{pair.model:.4f} in torch, {pair.export:.4f} exported{points}"
