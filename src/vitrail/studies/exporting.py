"""Export a trained model and compare it with the original on the images of its data."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from vitrail.core.errors import ConfigError, DataError
from vitrail.engines.export.comparison import DEFAULT_LOSS_POINTS, Samples, generate_samples
from vitrail.engines.export.exporting import check_export_folder, export_model
from vitrail.engines.export.package import Format, Package, Precision
from vitrail.engines.loading import RUN_FILE, load_any
from vitrail.models.checkpoint import LoadedModel
from vitrail.tasks.contract import Task
from vitrail.tasks.preparing import open_checked
from vitrail.tasks.registry import TASKS, open_run, task_of_model
from vitrail.train.processes import single_process

SPLIT, CALIBRATION_SPLIT = "test", "train"
EXPORTS = "exports"  # default parent folder


def export(
    run: str | Path,
    output: str | Path | None = None,
    *,
    export_format: Format,
    precision: Precision = "float32",
    data: str | Path | None = None,
    tolerance: float | None = None,
    box_tolerance: float | None = None,
    allow_accuracy_loss: float = DEFAULT_LOSS_POINTS,
    on_stage: Callable[[str], None] = lambda stage: None,
) -> Package:
    """Export a classifier or a detector for another engine, if both compute the same.

    They are compared on the test split of the run's data, or of other data; without either, on generated
    images. int8 is calibrated on the training split.

    Args:
        run: a run directory, the folder of a saved model, or a published model.
        output: new folder (default: ``exports/NAME-FORMAT`` or ``exports/NAME-FORMAT-PRECISION``).
        export_format: ``onnx``, ``openvino`` or ``torch``.
        precision: ``float32``, ``bfloat16`` or ``int8``.
        data: any data that ``vitrail.train`` takes, instead of the run's own.
        tolerance: allowed difference of logits: the maximum for float32, else the mean.
        box_tolerance: likewise for box coordinates, as fractions of the image.
        allow_accuracy_loss: allowed drop of accuracy or average precision, in percentage points.
        on_stage: called with the current stage.

    Raises:
        CheckpointError: there is no usable model, or its export differs or scores less than allowed;
            nothing is written then.
        ConfigError: the model takes no images, a package is missing, or the engine cannot run the model.
        DataError: the data cannot be used, or int8 has none.
    """
    loaded = load_any(run)
    task = task_of_model(loaded)
    if export_format not in task.export_formats:
        able = [name for name, other in TASKS.items() if export_format in other.export_formats]
        formats = " or ".join(f"--format {each}" for each in sorted(task.export_formats))
        raise ConfigError(
            f"{run} is a model for {task.name}, which cannot be exported as {export_format}",
            expected=f"a model for {' or '.join(able)}",
            remedy=f"Choose {formats}" if formats else f"Use the run itself: {task.usage}, or vitrail serve",
        )
    folder = default_output(run, export_format, precision) if output is None else Path(output)
    check_export_folder(folder)
    samples = find_samples(run, loaded, task, None if data is None else str(data), on_stage)
    return export_model(
        loaded,
        folder,
        export_format=export_format,
        precision=precision,
        samples=samples,
        tolerance=tolerance,
        box_tolerance=box_tolerance,
        allowed_points=allow_accuracy_loss,
        on_stage=on_stage,
    )


def default_output(run: str | Path, export_format: str, precision: str) -> Path:
    """Return the default folder of an export.

    >>> default_output("runs/photos", "onnx", "int8").as_posix()
    'exports/photos-onnx-int8'
    """
    name = str(run).rstrip("/").replace(":", "/").split("/")[-1] or "model"
    suffix = "" if precision == "float32" else f"-{precision}"
    return Path(EXPORTS) / f"{name}-{export_format}{suffix}"


def find_samples(
    run: str | Path, loaded: LoadedModel, task: Task, data: str | None, on_stage: Callable[[str], None]
) -> Samples:
    """Return the images to compare on: of the given data, else of the run's, else generated ones."""
    if data is not None:
        on_stage(f"opening {data}")
        dataset, _ = open_checked(task, task.data_settings(data, loaded), single_process())
        return _take_splits(task, loaded, dataset)
    if (Path(run) / RUN_FILE).is_file():
        experiment = open_run(run).experiment
        on_stage(f"opening {experiment.data.source}")
        try:
            dataset, _ = open_checked(task, experiment.data, single_process())
            return _take_splits(task, loaded, dataset)
        except DataError as error:  # moved or changed since, or a network that cannot be reached
            on_stage(f"the data of the run cannot be used: {error.given}")
    objective = task.export_objective(loaded)
    assert objective is not None, "checked before"
    return generate_samples(loaded, objective)


def _take_splits(task: Task, loaded: LoadedModel, dataset: Any) -> Samples:
    if not len(dataset.splits[SPLIT]):
        raise DataError(
            f"{dataset.source} has no image in its {SPLIT} split",
            expected="images to compare the model and its export on",
            remedy="Name other data with --data",
        )
    scoring = task.score(loaded, dataset, SPLIT)
    calibration = (
        task.score(loaded, dataset, CALIBRATION_SPLIT).source if len(dataset.train) else scoring.source
    )
    title = f"the {SPLIT} split of {Path(dataset.source).name}"
    objective: Any = scoring.objective
    return Samples(objective, scoring.source, title, has_labels=True, calibration=calibration)
