"""Commands that use a trained model: predict, explain."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter, validators

from vitrail.cli.app import EXIT_SOME_FAILED, Flag, app


@app.command(help_epilogue="Example: vitrail predict runs/photos holiday/*.jpg --top 1 --json")
def predict(
    run: Path,
    files: Annotated[list[str], Parameter(name="FILE")],
    /,
    *,
    top: Annotated[int, Parameter(validator=validators.Number(gte=1))] = 3,
    json: Flag = False,
    output: Annotated[Path | None, Parameter(name=["--output", "-o"])] = None,
) -> int:
    """Classify image files; one that cannot be read is reported and the others go on.

    Args:
        run: A run directory or a checkpoint folder.
        files: Image files, folders or quoted patterns such as "holiday/*.jpg".
        top: Number of classes to show for each image.
        json: Print JSON instead of a table.
        output: Write the JSON to this file.
    """
    from vitrail import terminal
    from vitrail.deploy.predictor import Predictor

    predictions = Predictor(run).predict(files, top=top)
    if json or output is not None:
        terminal.show_json([prediction.to_json() for prediction in predictions], output)
    else:
        terminal.show_predictions(predictions)
    return EXIT_SOME_FAILED if any(prediction.error for prediction in predictions) else 0


@app.command(help_epilogue="Example: vitrail explain runs/photos cat.jpg -o cat.html")
def explain(
    run: Path,
    files: Annotated[list[str], Parameter(name="FILE")],
    /,
    *,
    method: str | None = None,
    output: Annotated[Path, Parameter(name=["--output", "-o"])] = Path("explain.html"),
) -> int:
    """Show where the model looks: one page with every layer and head, or overlay pictures.

    Args:
        run: A run directory or a checkpoint folder.
        files: Image files, folders or quoted patterns.
        method: What a picture shows: rollout through all layers, or attention of the last; a page has both.
        output: An .html page, a .png picture of one image, or a folder for a picture of each.
    """
    from vitrail import terminal
    from vitrail.deploy.explain_files import explain_files
    from vitrail.deploy.predictor import Predictor

    explained = explain_files(Predictor(run), files, output=output, method=method)
    terminal.show_lines(str(path) for path in explained.files)
    terminal.show_errors(explained.errors)
    return EXIT_SOME_FAILED if explained.errors else 0
