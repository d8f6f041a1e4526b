"""Commands that use a trained model: predict, explain, translate."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter, validators

from vitrail.cli.app import EXIT_SOME_FAILED, Flag, app
from vitrail.errors import ConfigError

Count = Annotated[int, Parameter(validator=validators.Number(gte=1))]


@app.command(help_epilogue="Example: vitrail predict runs/photos holiday/*.jpg --top 1 --json")
def predict(
    run: Path,
    files: Annotated[list[str], Parameter(name="FILE")],
    /,
    *,
    top: Count = 3,
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
    files: Annotated[list[str] | None, Parameter(name="FILE")] = None,
    /,
    *,
    text: Annotated[tuple[str, ...], Parameter(show_default=False)] = (),
    target: str | None = None,
    layer: int | None = None,
    head: int | None = None,
    method: str | None = None,
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

    from vitrail.deploy.explain_files import explain_files
    from vitrail.deploy.predictor import Predictor

    explained = explain_files(Predictor(run), files or [], output=output, method=method)
    terminal.show_lines(str(path) for path in explained.files)
    terminal.show_errors(explained.errors)
    return EXIT_SOME_FAILED if explained.errors else 0


@app.command(help_epilogue="Example: vitrail translate runs/en-de letter.en -o letter.de")
def translate(
    run: Path,
    file: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    /,
    *,
    beam: Count = 5,
    length_penalty: float = 1.0,
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
        beam: Hypotheses that are kept while searching; 1 is fastest.
        length_penalty: Exponent of the length; 0 prefers short translations, 2 long ones.
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

    done = translate_file(
        Translator(run),
        file,
        standard_input=sys.stdin.buffer,
        standard_output=sys.stdout.buffer,
        tell=terminal.show_line_fault,
        output=output,
        layout="json" if json else "scores" if scores else "text",
        search=Search(beam, length_penalty, num_best, max_length),
        batch_tokens=batch_tokens,
    )
    return EXIT_SOME_FAILED if done.errors else 0
