"""Export of a trained model as a package: traced, written, compared, and kept only if it agrees."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from vitrail.core.durable import atomic_folder, check_replaceable
from vitrail.core.errors import DataError, VitrailError, first_line
from vitrail.engines.export import comparison
from vitrail.engines.export.formats import FORMATS, ExportFormat, Runner
from vitrail.engines.export.package import (
    PACKAGE_FILE,
    Format,
    Package,
    Precision,
    digest_files,
    digest_model,
)
from vitrail.engines.export.tracing import LEAST_ROWS, Traced, free_size_multiple, is_detector, trace
from vitrail.models.checkpoint import CLASS_IDS_FILE, LoadedModel

OTHER_SIZES = ((2, 3), (5, 4))  # rows and columns of the last feature map, if image sizes are free

OnStage = Callable[[str], None]
"""Called with the current stage."""


def export_model(
    loaded: LoadedModel,
    folder: Path,
    *,
    export_format: Format,
    samples: comparison.Samples,
    precision: Precision = "float32",
    tolerance: float | None = None,
    box_tolerance: float | None = None,
    allowed_points: float = comparison.DEFAULT_LOSS_POINTS,
    on_stage: OnStage = lambda stage: None,
) -> Package:
    """Export a classifier or a detector for an engine, and verify its outputs on images.

    In bfloat16 and int8, all labelled ``samples`` are compared and scored; otherwise some are.

    Args:
        folder: created; a package in it is replaced as a whole.
        export_format: ``onnx``, ``openvino`` or ``torch``.
        samples: for comparison; int8 needs labels and calibration images.
        precision: of the matrix products.
        tolerance: of logits: the maximum difference in float32, the mean in others.
        box_tolerance: the same for box coordinates, relative to the image.
        allowed_points: percentage points of the score that may be lost.

    Returns:
        : The package in the folder.

    Raises:
        ConfigError: a package is not installed, or the engine does not
            support the model.
        CheckpointError: outputs differ, or the folder cannot be replaced; nothing is written.
        DataError: int8 has no images to calibrate or to score with.
    """
    writer = FORMATS[export_format]
    writer.check(precision)
    check_export_folder(folder)
    if precision == "int8" and not (samples.has_labels and samples.calibration is not None):
        raise DataError(
            "int8 needs your own images, and there are none",
            expected="labelled images, to calibrate ranges and to measure the loss of accuracy",
            remedy="Name the data with --data",
        )
    loaded.model.eval().cpu()
    with atomic_folder(folder) as staged:
        traced, runner = _Export(loaded, writer, precision, samples, staged, on_stage).write()
        on_stage(f"comparing on {samples.title}")
        count = len(samples.source)
        indices = comparison.spread(
            count, count if comparison.is_scored_whole(precision, samples) else comparison.NUM_COMPARED
        )
        found = comparison.compare(loaded.model, runner, samples, indices, traced.inputs)
        tolerance = comparison.tolerance_of(found, precision, tolerance)
        if found.largest_box_difference is not None and box_tolerance is None:
            box_tolerance = comparison.BOX_TOLERANCES[precision]
        comparison.check_differences(found, precision, tolerance, box_tolerance=box_tolerance)
        comparison.check_loss(found, samples.objective.headline, precision, allowed_points)
        class_ids = {}
        if CLASS_IDS_FILE in loaded.files:
            class_ids["class_ids"] = json.loads(loaded.files[CLASS_IDS_FILE])
        package = Package(
            task="detection" if is_detector(loaded.model) else "classification",
            format=export_format,
            precision=precision,
            model_settings=loaded.model_settings,
            preprocessing=loaded.preprocessing,
            class_names=tuple(loaded.class_names),
            about={**class_ids, **loaded.about},
            inputs=traced.inputs,
            outputs=traced.outputs,
            comparison=found,
            tolerance=tolerance,
            box_tolerance=None if found.largest_box_difference is None else box_tolerance,
            weights=digest_model(loaded),
            files=digest_files(staged),
        )
        package.write(staged)
    return package.model_copy(update={"folder": folder})


def check_export_folder(folder: Path) -> None:
    """Refuse to replace anything but an exported model; see ``check_replaceable``."""
    check_replaceable(folder, "an exported model", markers=(PACKAGE_FILE,), example="exports/NAME-onnx")


@dataclass(frozen=True)
class _Export:
    """What is written, and where."""

    loaded: LoadedModel
    writer: ExportFormat
    precision: Precision
    samples: comparison.Samples
    folder: Path
    on_stage: OnStage

    def write(self) -> tuple[Traced, Runner]:
        """Write a model for free image sizes if supported and verified, else for its own size."""
        if self._may_be_free():
            try:
                self.on_stage("tracing the model for any size")
                traced, runner = self._write(is_free=True)
                self._check_other_sizes(traced, runner)
                return traced, runner
            except (VitrailError, RuntimeError, AssertionError) as error:  # engines have their own errors
                self.on_stage(f"it supports one size only: {first_line(error)}")
                for path in self.folder.iterdir():
                    path.unlink()
        self.on_stage("tracing the model")
        return self._write(is_free=False)

    def _may_be_free(self) -> bool:
        """Return whether image sizes may be free: the model's own size must be among those allowed."""
        multiple = free_size_multiple(self.loaded.model.config)
        if multiple is None:
            return False
        return is_detector(self.loaded.model) or all(  # its images are padded to a size that is
            length % multiple == 0 and length >= LEAST_ROWS * multiple for length in canvas_of(self.loaded)
        )

    def _write(self, *, is_free: bool) -> tuple[Traced, Runner]:
        is_narrow = self.precision == "bfloat16" and self.writer.traces_narrow
        size = canvas_of(self.loaded)
        traced = trace(self.loaded.model, size, is_narrow=is_narrow, is_free=is_free)
        calibration = []
        if self.precision == "int8":
            self.on_stage("calibrating")
            calibration = comparison.calibration_batches(self.samples, traced.inputs)
        self.on_stage(f"writing {self.writer.name} in {self.precision}")
        self.writer.write(traced, self.folder, precision=self.precision, calibration=calibration)
        return traced, self.writer.open(self.folder, self.precision, trust=True)  # just written

    def _check_other_sizes(self, traced: Traced, runner: Runner) -> None:
        """Refuse a graph for free image sizes that is right for one size only."""
        objective, multiple = self.samples.objective, traced.inputs[0].multiple_of
        for rows, columns in OTHER_SIZES:
            size = (rows * multiple, columns * multiple)
            title = f"images of {size[0]}x{size[1]}"
            samples = comparison.Samples(
                objective, comparison.GeneratedImages(objective, [size] * 3), title, has_labels=False
            )
            found = comparison.compare(self.loaded.model, runner, samples, range(3), traced.inputs)
            comparison.check_differences(found, self.precision)


def canvas_of(loaded: LoadedModel) -> tuple[int, int]:
    """Return the height and width that hold every prepared image."""
    height, width = loaded.preprocessing["image_size"]
    if loaded.preprocessing.get("resize") == "shortest":  # of a detector: padded to either orientation
        return max(height, width), max(height, width)
    return height, width
