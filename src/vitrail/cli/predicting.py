"""The command predict."""

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
    write_file,
)
from vitrail.core.errors import ConfigError

if TYPE_CHECKING:
    pass

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
    """Classify or caption images, or detect objects; unreadable files are reported, the others go on.

    Args:
        run: A run directory, a checkpoint folder or an exported model.
        files: Image files, folders or quoted patterns such as "holiday/*.jpg".
        top: Number of classes per image, 3 by default; or of captions, 1 by default.
        threshold: Detectors only: confidence threshold. Default: the one tuned on the run's validation set.
        engine: Classifiers and detectors only: torch, compiled, onnxruntime, openvino, or auto, the fastest
            that vitrail bench has measured here.
        precision: Number type of the matrix products: float32 or bfloat16; int8 for models exported with it.
        trust: Also read a model exported for torch (.pt2), which can run code of whoever wrote it.
        json: Print JSON instead of a table.
        output: Write classes or captions to this file, whose suffix decides the format: .json, .jsonl, .csv,
            .tsv or .txt; or boxes (JSON, table, pictures) into this folder.
    """
    from vitrail.cli import show as terminal
    from vitrail.engines.building import AUTOMATIC
    from vitrail.engines.loading import open_source
    from vitrail.tasks.contract import FileOptions, Predicting
    from vitrail.tasks.other_use import other_use
    from vitrail.tasks.registry import TASKS, task_of_model

    opened = open_source(run)
    task = task_of_model(opened)
    if not isinstance(task, Predicting):
        raise ConfigError(
            f"{run} is a model for {task.name}",
            expected="a model that answers about images alone",
            remedy=other_use(opened.preprocessing),
        )
    given = {"top": top, "threshold": threshold, "engine": engine, "precision": precision}
    for option in (name for name, value in given.items() if value is not None):
        if option not in task.predict_options:
            fitting = [
                name
                for name, other in TASKS.items()
                if isinstance(other, Predicting) and option in other.predict_options
            ]
            raise ConfigError(
                f"--{option} does not apply to {run}, a model for {task.name}",
                expected=f"a model for {' or '.join(fitting)}",
                remedy=f"Leave out --{option}",
            )
    options = FileOptions(
        source=run if engine == AUTOMATIC else opened,  # bench's measurements lie beside the run
        top=top,
        threshold=threshold,
        engine=engine,
        precision=precision,
        trust=trust,
        output=output,
        as_json=json,
    )
    results = task.predict_files(files, options)
    if output is not None and results.answers is not None:
        write_file(output, results.answers, results.errors)
    elif json and output is None:
        terminal.show_json(results.tree)
    else:
        terminal.show_results(results)
    return EXIT_SOME_FAILED if results.errors else 0
