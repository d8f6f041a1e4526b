"""Commands that use a trained model: predict, explain, translate."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter, validators

from vitrail.cli.app import EXIT_SOME_FAILED, Flag, app
from vitrail.errors import ConfigError

if TYPE_CHECKING:
    from vitrail.checkpoint import LoadedModel

Count = Annotated[int, Parameter(validator=validators.Number(gte=1))]
Share = Annotated[float, Parameter(validator=validators.Number(gte=0, lte=1))]


@app.command(help_epilogue="Example: vitrail predict runs/photos holiday/*.jpg --top 1 --json")
def predict(
    run: Path,
    files: Annotated[list[str], Parameter(name="FILE")],
    /,
    *,
    top: Count = 3,
    threshold: Share | None = None,
    json: Flag = False,
    output: Annotated[Path | None, Parameter(name=["--output", "-o"])] = None,
) -> int:
    """Classify image files, or find the objects in them; bad files are reported and the others go on.

    Args:
        run: A run directory or a checkpoint folder.
        files: Image files, folders or quoted patterns such as "holiday/*.jpg".
        top: Number of classes to show for each image.
        threshold: Least score of a box; of a detector, which has one of its own.
        json: Print JSON instead of a table.
        output: Write the JSON of classes to this file; or boxes (JSON, table and pictures) into this folder.
    """
    from vitrail import terminal
    from vitrail.deploy.loading import load_any
    from vitrail.deploy.predictor import Predictor

    loaded = load_any(run)
    if loaded.preprocessing.get("kind") == "boxes":
        return _detect(loaded, files, threshold=threshold, json=json, output=output)
    if threshold is not None:
        raise _only_detectors("--threshold", run)
    predictions = Predictor(loaded).predict(files, top=top)
    if json or output is not None:
        terminal.show_json([prediction.to_json() for prediction in predictions], output)
    else:
        terminal.show_predictions(predictions)
    return EXIT_SOME_FAILED if any(prediction.error for prediction in predictions) else 0


@app.command(help_epilogue="Example: vitrail explain runs/photos cat.jpg -o cat.html")
def explain(
    run: Path,
    files: Annotated[list[str] | None, Parameter(name="FILE")] = None,
    /,
    *,
    text: Annotated[tuple[str, ...], Parameter(show_default=False)] = (),
    target: str | None = None,
    layer: int | None = None,
    head: int | None = None,
    method: str | None = None,
    threshold: Share | None = None,
    output: Annotated[Path, Parameter(name=["--output", "-o"])] = Path("explain.html"),
) -> int:
    """Show where the model looks: one page with every layer and head, or overlay pictures.

    Args:
        run: A run directory or a checkpoint folder.
        files: Image files, folders or quoted patterns; of an image model.
        text: A sentence to translate; of a translator, whose alignment is shown; may be given again.
        target: The translation to be aligned, instead of the model's own.
        layer: The layer that a text's .png shows, negative from the end; all of them otherwise.
        head: The head that it shows.
        method: What a picture shows: rollout through all layers, or attention of the last; a page has both.
        threshold: Least score of a box that is explained; of a detector.
        output: An .html page, a .png picture of one image or text, or a folder for a picture of each.
    """
    if bool(text) == bool(files):
        raise ConfigError(
            "files and --text were both given" if text else "neither files nor --text was given",
            expected="image files for an image model, or --text for a translator",
            remedy="Name the images, or give a sentence as in --text 'A dog runs.'",
        )
    from vitrail import terminal

    if text:
        from vitrail.deploy.explain_text import explain_texts
        from vitrail.deploy.translator import Translator

        explain_texts(Translator(run), text, target=target, output=output, layer=layer, head=head)
        terminal.show_lines([str(output)])
        return 0

    from vitrail.deploy.detector import Detector
    from vitrail.deploy.explain_boxes import explain_box_files
    from vitrail.deploy.explain_files import explain_files
    from vitrail.deploy.loading import load_any
    from vitrail.deploy.predictor import Predictor

    loaded = load_any(run)
    if loaded.preprocessing.get("kind") == "boxes":
        of_boxes = explain_box_files(Detector(loaded), files or [], output=output, threshold=threshold)
        return _show_explained(of_boxes.files, of_boxes.errors)
    if threshold is not None:
        raise _only_detectors("--threshold", run)
    explained = explain_files(Predictor(loaded), files or [], output=output, method=method)
    return _show_explained(explained.files, explained.errors)


@app.command(help_epilogue="Example: vitrail translate runs/en-de letter.en -o letter.de")
def translate(
    run: Path,
    file: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    /,
    *,
    beam: Count | None = None,
    length_penalty: float | None = None,
    num_best: Count = 1,
    max_length: Count | None = None,
    batch_tokens: Count = 2048,
    scores: Flag = False,
    json: Flag = False,
    output: Annotated[Path | None, Parameter(name=["--output", "-o"])] = None,
) -> int:
    """Translate the lines of a file or of standard input, in order, one line for each.

    Args:
        run: A run directory or a checkpoint folder of a translator.
        file: Text in UTF-8, one sentence on each line, .gz too; - or nothing reads standard input.
        beam: Hypotheses that are kept while searching, 1 is fastest; what the run was scored with otherwise.
        length_penalty: Exponent of the length, 0 prefers short translations, 2 long ones; as beam.
        num_best: Translations to write for each line, numbered.
        max_length: Most subwords of a translation; twice the source's and ten otherwise.
        batch_tokens: Subwords that are translated together.
        scores: Write the score before each translation.
        json: Write one JSON object for each line.
        output: A file to write instead of standard output.
    """
    import sys

    from vitrail import terminal
    from vitrail.deploy.translate_files import translate_file
    from vitrail.deploy.translator import Search, Translator

    translator = Translator(run)
    usual = translator.search
    done = translate_file(
        translator,
        file,
        standard_input=sys.stdin.buffer,
        standard_output=sys.stdout.buffer,
        tell=terminal.show_line_fault,
        output=output,
        layout="json" if json else "scores" if scores else "text",
        search=Search(
            beam or usual.beam_size,
            usual.length_penalty if length_penalty is None else length_penalty,
            num_best,
            max_length,
        ),
        batch_tokens=batch_tokens,
    )
    return EXIT_SOME_FAILED if done.errors else 0


def _detect(
    loaded: LoadedModel, files: list[str], *, threshold: float | None, json: bool, output: Path | None
) -> int:
    """Find the objects in files, and write what was found into a folder unless it is only to be printed."""
    from vitrail import terminal
    from vitrail.deploy.detect_files import detect_files
    from vitrail.deploy.detector import Detector

    detector = Detector(loaded)
    if json and output is None:
        found = detector.detect(files, threshold=threshold)
        terminal.show_json([each.to_json() for each in found])
        return EXIT_SOME_FAILED if any(each.error for each in found) else 0
    written = detect_files(detector, files, output=output or Path("detections"), threshold=threshold)
    terminal.show_detections(written.detections)
    terminal.show_lines([f"boxes, table and pictures in {written.folder}"])
    return EXIT_SOME_FAILED if written.errors else 0


def _show_explained(files: Iterable[Path], errors: tuple[tuple[str, str], ...]) -> int:
    from vitrail import terminal

    terminal.show_lines(str(path) for path in files)
    terminal.show_errors(errors)
    return EXIT_SOME_FAILED if errors else 0


def _only_detectors(option: str, run: Path) -> ConfigError:
    return ConfigError(
        f"{option} was given, and {run} is no detector",
        expected="a run that was trained on images with boxes",
        remedy=f"Leave {option} out",
    )
