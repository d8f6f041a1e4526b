"""Export of a trained model as a package: traced, written, compared, and kept only if it agrees."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from vitrail.core.durable import atomic_folder
from vitrail.core.errors import CheckpointError, ConfigError, DataError, VitrailError
from vitrail.data.box_preprocessing import BoxPreprocessing
from vitrail.data.preprocessing import Preprocessing
from vitrail.engines.export.comparison import (
    DEFAULT_LOSS_POINTS,
    Differences,
    box_tolerance_of,
    check_differences,
    check_loss,
    compare,
    is_scored_whole,
    tolerance_of,
)
from vitrail.engines.export.contract import ExportFormat, Runner
from vitrail.engines.export.digest import digest_model
from vitrail.engines.export.onnx_format import FORMAT as ONNX
from vitrail.engines.export.openvino_format import FORMAT as OPENVINO
from vitrail.engines.export.package import PACKAGE_FILE, Comparison, Format, Package, Precision, digest_files
from vitrail.engines.export.samples import GeneratedImages, Samples, batches_of, generate_samples, spread
from vitrail.engines.export.torch_format import FORMAT as TORCH
from vitrail.engines.export.tracing import LEAST_CELLS, Traced, first_line, free_size_multiple, trace
from vitrail.models.checkpoint import CLASS_IDS_FILE, LoadedModel
from vitrail.models.contract import DetectionModelConfig, ImageModelConfig

FORMATS: dict[str, ExportFormat] = {each.name: each for each in (ONNX, OPENVINO, TORCH)}
"""Every format by its name."""
NUM_COMPARED = 64  # images, if no full split is scored
NUM_CALIBRATED = 128  # calibration images; more change the ranges little
OTHER_SIZES = ((2, 3), (5, 4))  # rows and columns of the last feature map, if image sizes are free

OnStage = Callable[[str], None]
"""Called with the current stage."""


class _Asked(NamedTuple):
    """The export request with its samples."""

    precision: Precision
    samples: Samples


class _Written(NamedTuple):
    """A written model."""

    traced: Traced
    runner: Runner


def export_model(
    loaded: LoadedModel,
    folder: Path,
    *,
    export_format: Format,
    precision: Precision = "float32",
    samples: Samples | None = None,
    tolerance: float | None = None,
    box_tolerance: float | None = None,
    allowed_points: float = DEFAULT_LOSS_POINTS,
    on_stage: OnStage = lambda stage: None,
) -> Package:
    """Export a classifier or a detector for an engine, and verify its outputs on images.

    In bfloat16 and int8, all labelled ``samples`` are compared and scored; otherwise some are.

    Args:
        folder: created; a package in it is replaced as a whole.
        export_format: ``onnx``, ``openvino`` or ``torch``.
        precision: of the matrix products; int8 needs labelled samples and calibration images.
        samples: for comparison; generated ones by default.
        tolerance: of logits: the maximum difference in float32, the mean in others.
        box_tolerance: the same for box coordinates, relative to the image.
        allowed_points: percentage points of the score that may be lost.

    Returns:
        : The package in the folder.

    Raises:
        ConfigError: the model is none of images, a package is not installed, or the engine cannot take it.
        CheckpointError: it computes something else, or the folder cannot be replaced; nothing is written.
        DataError: int8 has no images to calibrate or to score with.
    """
    kind = _kind_of(loaded)
    writer = FORMATS[export_format]
    writer.check(precision)
    check_replaceable(folder)
    samples = _settle_samples(samples, loaded, precision)
    loaded.model.eval().cpu()
    asked = _Asked(precision, samples)
    with atomic_folder(folder) as staged:
        written = _write(writer, loaded, staged, asked, on_stage)
        on_stage(f"comparing on {samples.title}")
        found, comparison = _compare(loaded.model, written, asked)
        tolerance = tolerance_of(found, precision, tolerance)
        box_tolerance = box_tolerance_of(found, precision, box_tolerance)
        check_differences(found, precision, tolerance, box_tolerance=box_tolerance, title=samples.title)
        check_loss(comparison, kind, precision, allowed_points)
        package = Package(
            format=export_format,
            **_described(loaded, written.traced, precision),
            comparison=comparison,
            tolerance=tolerance,
            box_tolerance=box_tolerance,
            files=digest_files(staged),
        )
        package.write(staged)
    return package.model_copy(update={"folder": folder})


def _compare(model: nn.Module, written: _Written, asked: _Asked) -> tuple[Differences, Comparison]:
    """Compare on some images, or on all if they are scored."""
    samples, num_images = asked.samples, len(asked.samples.source)
    indices = spread(num_images, num_images if is_scored_whole(asked.precision, samples) else NUM_COMPARED)
    return compare(model, written.runner, samples, indices, written.traced.inputs)


def _described(loaded: LoadedModel, traced: Traced, precision: Precision) -> dict[str, Any]:
    return {
        "precision": precision,
        "task": _kind_of(loaded),
        "weights": digest_model(loaded),
        "inputs": traced.inputs,
        "outputs": traced.outputs,
        "model_settings": loaded.model_settings,
        "preprocessing": loaded.preprocessing,
        "class_names": tuple(loaded.class_names),
        "about": _about(loaded),
    }


def _settle_samples(samples: Samples | None, loaded: LoadedModel, precision: Precision) -> Samples:
    samples = generate_samples(loaded, NUM_COMPARED) if samples is None else samples
    if precision == "int8" and not (samples.has_labels and samples.calibration is not None):
        raise DataError(
            "int8 needs images of yours, and there are none",
            expected="images with labels, to take ranges from and to say what accuracy it costs",
            remedy="Name the data with --data",
        )
    return samples


def check_replaceable(folder: Path) -> None:
    """Refuse to replace anything but a package, as all of the folder is removed.

    Raises:
        CheckpointError: the folder holds something else.
    """
    is_free = not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))
    if not is_free and not (folder / PACKAGE_FILE).is_file():
        raise CheckpointError(
            f"{folder} exists, and is no exported model",
            expected="a folder that does not exist yet, is empty, or holds an exported model",
            remedy="Name another folder, such as exports/NAME-onnx",
        )


def _write(
    writer: ExportFormat, loaded: LoadedModel, folder: Path, asked: _Asked, on_stage: OnStage
) -> _Written:
    """Write a model for free image sizes if supported and verified, else for its own size."""
    size, is_narrow = canvas_of(loaded), asked.precision == "bfloat16" and writer.traces_narrow
    if _may_be_free(_config_of(loaded), size):
        try:
            on_stage("tracing the model for any size")
            traced = trace(loaded.model, size, is_narrow=is_narrow, is_free=True)
            written = _write_traced(writer, traced, folder, asked, on_stage)
            _check_other_sizes(loaded.model, written, asked)
            return written
        except (
            VitrailError,
            RuntimeError,
            AssertionError,
        ) as error:  # engines have their own errors
            on_stage(f"it takes one size alone: {first_line(error)}")
            for path in folder.iterdir():
                path.unlink()
    on_stage("tracing the model")
    traced = trace(loaded.model, size, is_narrow=is_narrow)
    return _write_traced(writer, traced, folder, asked, on_stage)


def _may_be_free(config: ImageModelConfig | DetectionModelConfig, size: tuple[int, int]) -> bool:
    """Return whether image sizes may be free: the model's own size must be among those allowed."""
    multiple = free_size_multiple(config)
    if multiple is None:
        return False
    is_detector = isinstance(config, DetectionModelConfig)  # its images are padded to a size that is
    least = LEAST_CELLS * multiple
    return is_detector or all(length % multiple == 0 and length >= least for length in size)


def _write_traced(
    writer: ExportFormat, traced: Traced, folder: Path, asked: _Asked, on_stage: OnStage
) -> _Written:
    samples, calibration = asked.samples, []
    if asked.precision == "int8":
        assert samples.calibration is not None
        indices = spread(len(samples.calibration), NUM_CALIBRATED)
        on_stage(f"calibrating on {len(indices)} images")
        batches = batches_of(samples, samples.calibration, indices, traced.inputs)
        calibration = [inputs for _, inputs in batches]
        if not calibration:
            raise DataError(
                "none of the images to calibrate with can be read",
                expected="images that ranges of whole numbers are taken from",
                remedy="Name other data with --data",
            )
    on_stage(f"writing {writer.name} in {asked.precision}")
    writer.write(traced, folder, precision=asked.precision, calibration=calibration)
    return _Written(traced, writer.open(folder, asked.precision, trust=True))  # just written


def _check_other_sizes(model: nn.Module, written: _Written, asked: _Asked) -> None:
    """Refuse a graph for free image sizes that is right for one size only.

    Raises:
        VitrailError: it is.
    """
    ports, objective = written.traced.inputs, asked.samples.objective
    for cells in OTHER_SIZES:
        size = (cells[0] * ports[0].multiple_of, cells[1] * ports[0].multiple_of)
        title = f"images of {size[0]}x{size[1]}"
        source = GeneratedImages([size] * 3, has_boxes=len(ports) > 1)
        samples = Samples(objective, source, title, has_labels=False)
        found, _ = compare(model, written.runner, samples, range(3), ports)
        tolerance = tolerance_of(found, asked.precision, None)
        check_differences(found, asked.precision, tolerance, title=title)


def canvas_of(loaded: LoadedModel) -> tuple[int, int]:
    """Return the height and width that hold every prepared image."""
    if loaded.preprocessing.get("task") != "detection":
        return Preprocessing.from_tree(loaded.preprocessing).image_size
    of_boxes = BoxPreprocessing.from_tree(loaded.preprocessing)
    longer = max(of_boxes.image_size)
    return (longer, longer) if of_boxes.resize == "shortest" else of_boxes.image_size


def _kind_of(loaded: LoadedModel) -> str:
    return "detection" if isinstance(_config_of(loaded), DetectionModelConfig) else "classification"


def _config_of(loaded: LoadedModel) -> ImageModelConfig | DetectionModelConfig:
    config = getattr(loaded.model, "config", None)
    if not isinstance(config, ImageModelConfig | DetectionModelConfig):
        raise ConfigError(
            f"{loaded.model_settings.get('name', 'the model')} reads no images",
            expected="a classifier of images or a detector",
            remedy="Choose --format ctranslate2 for a translator",
        )
    return config


def _about(loaded: LoadedModel) -> dict[str, Any]:
    """Return the model's origin; of a detector with its class ids."""
    if CLASS_IDS_FILE not in loaded.files:
        return loaded.about
    return {"class_ids": json.loads(loaded.files[CLASS_IDS_FILE]), **loaded.about}
