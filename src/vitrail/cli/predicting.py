"""The command that classifies, captions or finds objects: predict."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from vitrail.cli.app import (
    EXIT_SOME_FAILED,
    Count,
    Flag,
    Share,
    app,
    only_detectors,
    refuse_options,
    write_file,
)
from vitrail.core.errors import ConfigError

if TYPE_CHECKING:
    from vitrail.models.checkpoint import LoadedModel
    from vitrail.tasks.detection.predictor import Detector

USUAL_TOP = 3  # classes of an image


@app.command(help_epilogue="Example: vitrail predict runs/photos holiday/*.jpg --top 1 --json")
def predict(
    run: Path,
    files: Annotated[list[str], Parameter(name="FILE")],
    /,
    *,
    top: Count | None = None,
    threshold: Share | None = None,
    engine: str | None = None,
    precision: str | None = None,
    trust: Flag = False,
    json: Flag = False,
    output: Annotated[Path | None, Parameter(name=["--output", "-o"])] = None,
) -> int:
    """Classify or caption image files, or find the objects in them; bad files are reported, others go on.

    Args:
        run: A run directory, a checkpoint folder or an exported model.
        files: Image files, folders or quoted patterns such as "holiday/*.jpg".
        top: Number of classes to show for each image, 3 otherwise; or of captions, 1 otherwise.
        threshold: Least score of a box; of a detector, which has one of its own.
        engine: What runs the model: torch, compiled, onnxruntime, openvino, or auto, the fastest that vitrail
            bench has measured here; of classifiers and detectors.
        precision: Number type of its matrix products: float32 or bfloat16; int8 of a model exported with it.
        trust: Read a model exported for torch (.pt2), too, which can run code of whoever wrote it.
        json: Print JSON instead of a table.
        output: Write classes or captions to this file, in the form that its name says: .json, .jsonl, .csv,
            .tsv or .txt; or boxes (JSON, table, pictures) into this folder.
    """
    from vitrail.cli import show as terminal
    from vitrail.engines.building import AUTOMATIC
    from vitrail.engines.opening import open_source
    from vitrail.models.checkpoint import LoadedModel
    from vitrail.tasks.answer_files import check_answer_file, class_answers
    from vitrail.tasks.classification.predictor import Predictor
    from vitrail.tasks.detection.predictor import Detector

    opened = open_source(run)
    kind = opened.preprocessing.get("task", "classification")
    if threshold is not None and kind != "detection":
        raise only_detectors("--threshold", run)
    if output is not None and kind != "detection":
        check_answer_file(output)
    if isinstance(opened, LoadedModel) and kind == "captioning":
        refuse_options({"--engine": engine, "--precision": precision}, needs="a classifier or a detector")
        return caption(opened, files, num_best=top or 1, json=json, output=output)
    source = run if engine == AUTOMATIC else opened  # beside the run lies what was measured of it
    if kind == "detection":
        detector = Detector(source, engine=engine, precision=precision, trust=trust)
        return _detect(detector, files, threshold=threshold, json=json, output=output)
    predictor = Predictor(source, engine=engine, precision=precision, trust=trust)
    predictions = predictor.predict(files, top=top or USUAL_TOP)
    if output is not None:
        errors = ((each.source, each.error) for each in predictions if each.error)
        write_file(output, class_answers(predictions), errors)
    elif json:
        terminal.show_json([prediction.to_json() for prediction in predictions])
    else:
        terminal.show_predictions(predictions)
    return EXIT_SOME_FAILED if any(prediction.error for prediction in predictions) else 0


def _detect(
    detector: Detector, files: list[str], *, threshold: float | None, json: bool, output: Path | None
) -> int:
    """Find the objects in files, and write what was found into a folder unless it is only to be printed."""
    from vitrail.cli import show as terminal
    from vitrail.tasks.answer_files import SUFFIXES
    from vitrail.tasks.detection.files import detect_files

    if output is not None and output.suffix.lower() in SUFFIXES and not output.is_dir():
        raise ConfigError(
            f"{output} is the name of a file",
            expected="a folder, for COCO's JSON, a table and pictures",
            remedy=f"Leave out {output.suffix}, or print JSON with --json",
        )
    if json and output is None:
        found = detector.detect(files, threshold=threshold)
        terminal.show_json([each.to_json() for each in found])
        return EXIT_SOME_FAILED if any(each.error for each in found) else 0
    written = detect_files(detector, files, output=output or Path("detections"), threshold=threshold)
    terminal.show_detections(written.detections)
    if written.folder is None:
        terminal.show_lines(["nothing was written: no image could be used"])
    else:
        least = detector.least_score(threshold)
        origin = "the run's own, chosen on its validation images" if threshold is None else "as given"
        terminal.show_lines(
            [f"boxes with a score of at least {least:.2f} ({origin}; --threshold sets another)"]
        )
        terminal.show_lines([f"boxes, table and pictures in {written.folder}"])
    return EXIT_SOME_FAILED if written.errors else 0


def caption(loaded: LoadedModel, files: list[str], *, num_best: int, json: bool, output: Path | None) -> int:
    """Caption files, and show the captions or write them into a file."""
    from vitrail.cli import show as terminal
    from vitrail.cli.show.answers import show_captions
    from vitrail.tasks.answer_files import caption_answers
    from vitrail.tasks.captioning.predictor import Captioner

    captions = Captioner(loaded).predict(files, num_best=num_best)
    if output is not None:
        errors = ((each.source, each.error) for each in captions if each.error)
        write_file(output, caption_answers(captions), errors)
    elif json:
        terminal.show_json([each.to_json() for each in captions])
    else:
        show_captions(captions)
    return EXIT_SOME_FAILED if any(each.error for each in captions) else 0
