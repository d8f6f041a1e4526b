"""Commands that compare images with texts: classify, retrieve."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from vitrail.cli.app import Count, Flag, app, deliver
from vitrail.core.errors import ConfigError

Texts = Annotated[tuple[str, ...], Parameter(show_default=False)]


@app.command(help_epilogue="Example: vitrail classify runs/clip holiday/ --names beach,mountain,city")
def classify(
    run: str,
    files: Annotated[list[str], Parameter(name="FILE")],
    /,
    *,
    names: str | None = None,
    names_file: Path | None = None,
    template: Texts = (),
    top: Count = 3,
    json: Flag = False,
    output: Annotated[Path | None, Parameter(name=["--output", "-o"])] = None,
) -> int:
    """Classify images zero-shot by any list of names, with a CLIP.

    Args:
        run: A run directory, a folder of a model, or a published CLIP: hf:OWNER/NAME.
        files: Image files, folders or quoted patterns such as "holiday/*.jpg".
        names: Comma-separated class names.
        names_file: File with one class name per line, instead of --names.
        template: Prompt with {} for the name, or seven for a list of them; may be given several times.
        top: Number of names to show for each image.
        json: Print JSON instead of a table.
        output: Write to this file; the suffix decides the format: .json, .jsonl, .csv, .tsv or .txt.
    """
    chosen = read_names(names, names_file)
    from vitrail.tasks.answer_files import check_answer_file
    from vitrail.tasks.classification.predictor import class_results
    from vitrail.tasks.contrastive.zero_shot import ZeroShotClassifier, check_names, read_templates

    checked, templates = check_names(chosen), read_templates(template)  # before a model is loaded
    if output is not None:
        check_answer_file(output)
    predictions = ZeroShotClassifier(run, checked, templates=templates).predict(files, top=top)
    return deliver(class_results(predictions), output, as_json=json)


@app.command(help_epilogue="Example: vitrail retrieve runs/clip holiday/ --text 'a dog on a beach'")
def retrieve(
    run: str,
    files: Annotated[list[str], Parameter(name="FILE")],
    /,
    *,
    text: Texts = (),
    by_image: Flag = False,
    top: Count = 5,
    json: Flag = False,
    output: Annotated[Path | None, Parameter(name=["--output", "-o"])] = None,
) -> int:
    """Find the nearest images to a text, or the nearest texts to an image, with a CLIP.

    Args:
        run: A run directory, a folder of a model or a published CLIP.
        files: Image files, folders or quoted patterns.
        text: A text; may be given several times.
        by_image: Show the nearest texts of each image instead of the nearest images of each text.
        top: Number of results per query.
        json: Print JSON instead of a table.
        output: Write to this file; the suffix decides the format: .json, .jsonl, .csv or .tsv.
    """
    from vitrail.tasks.answer_files import STRUCTURED, check_answer_file, retrieval_results
    from vitrail.tasks.contrastive.predictor import ImageTextEncoder
    from vitrail.tasks.contrastive.retrieval import retrieve as find

    if output is not None:
        check_answer_file(output, STRUCTURED)
    found = find(ImageTextEncoder(run), files, text, top=top, by_image=by_image)
    return deliver(retrieval_results(found), output, as_json=json)


def read_names(names: str | None, file: Path | None) -> list[str]:
    """Return comma-separated class names, or those of a file with one per line.

    Raises:
        ConfigError: neither was given, or both, or the file cannot be read.
    """
    if (names is None) == (file is None):
        raise ConfigError(
            "neither --names nor --names-file was given" if names is None else "both were given: names twice",
            expected="the names of the classes, once",
            remedy="Write them as in --names apple,pear, or one on each line of a file",
        )
    if names is not None:
        return names.split(",")
    assert file is not None
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{file} cannot be read: {error}",
            expected="a text file in UTF-8 with one name on each line",
            remedy="Correct the path, or use --names",
        ) from None
    return [line for line in lines if line.strip()]
