"""Commands that use models: predict, label, translate, classify, retrieve."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from vitrail.cli import show
from vitrail.cli.app import EXIT_SOME_FAILED, Count, Flag, Output, Share, Texts, app, read_names
from vitrail.core.errors import ConfigError, refuse

if TYPE_CHECKING:
    from vitrail.tasks.answer_files import FileResults

Files = Annotated[list[str], Parameter(name="FILE")]


@app.command(help_epilogue="Example: vitrail predict runs/photos holiday/*.jpg --top 1 --json")
def predict(
    run: Path,
    files: Files,
    /,
    *,
    top: Count | None = None,
    threshold: Share | None = None,
    engine: str | None = None,
    precision: str | None = None,
    trust: Flag = False,
    json: Flag = False,
    output: Output = None,
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
    from vitrail.engines.contract import AUTOMATIC
    from vitrail.engines.loading import open_source
    from vitrail.tasks.contract import FileOptions, Predicting
    from vitrail.tasks.registry import TASKS, other_use, task_of_model

    opened = open_source(run)
    task = task_of_model(opened)
    if not isinstance(task, Predicting):
        raise ConfigError(
            f"{run} is a model for {task.name}",
            expected="a model that answers about images alone",
            remedy=other_use(opened.preprocessing),
        )
    given = {"top": top, "threshold": threshold, "engine": engine, "precision": precision}
    for option, value in given.items():
        fitting = [name for name, other in TASKS.items() if option in getattr(other, "predict_options", ())]
        if task.name not in fitting:
            needs = f"a model for {' or '.join(fitting)}"
            refuse({option: value}, needs, f"Leave it out for {run}, a model for {task.name}")
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
    return deliver(task.predict_files(files, options), output, as_json=json)


@app.command(help_epilogue="Example: vitrail label runs/reviews --text 'What a film!'")
def label(
    run: str,
    file: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    /,
    *,
    text: Texts = (),
    top: Count = 1,
    json: Flag = False,
    output: Output = None,
) -> int:
    """Label the lines of a file or of standard input, or each of their words.

    Args:
        run: A run directory, a checkpoint folder of a model of texts, or a published one.
        file: UTF-8 text, one sentence per line, or its .gz; - or nothing reads standard input.
        text: A sentence instead of a file; may be given several times.
        top: Number of labels to show for each sentence or word.
        json: Print JSON instead of a table.
        output: Write to this file; the suffix decides the format: .json, .jsonl, .csv, .tsv or .txt.
    """
    from vitrail.data.text.input_lines import open_lines, read_lines
    from vitrail.tasks.answer_files import check_answer_file
    from vitrail.tasks.labelling.predictor import Labeller, label_results

    check_answer_file(output)
    given = _texts_or_standard_input(text, file)
    labeller = Labeller(run)
    with nullcontext(given) if file in (None, "-") else open_lines(file) as stream:
        found = labeller.label(read_lines(stream), top=top)
    return deliver(label_results(found), output, as_json=json)


@app.command(help_epilogue="Example: vitrail translate runs/en-de letter.en -o letter.de")
def translate(
    run: Path,
    file: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    /,
    *,
    text: Texts = (),
    beam: Count | None = None,
    length_penalty: float | None = None,
    penalty_form: Literal["power", "gnmt"] | None = None,
    num_best: Count = 1,
    max_length: Count | None = None,
    batch_tokens: Count = 2048,
    scores: Flag = False,
    json: Flag = False,
    output: Output = None,
) -> int:
    """Translate the lines of a file or of standard input, in order.

    Args:
        run: A run directory, a checkpoint folder of a translator, or its export for CTranslate2.
        file: UTF-8 text, one sentence per line, or its .gz; - or nothing reads standard input.
        text: A sentence instead of a file; may be given several times.
        beam: Beam size; 1 is greedy and fastest. Default: as in the run's evaluation.
        length_penalty: Length exponent a; 0 prefers short translations, 2 long ones. Default: as for beam.
        penalty_form: Length penalty: power, length^a, or gnmt, ((5 + length) / 6)^a. Default: as for beam.
        num_best: Number of different translations per line, numbered.
        max_length: Most subwords of a translation, its end included. Default: twice the source's plus ten.
        batch_tokens: Subwords per batch.
        scores: Write the score before each translation.
        json: Write one JSON object per line.
        output: Output file instead of standard output.
    """
    from vitrail.tasks.translation.files import translate_file
    from vitrail.tasks.translation.predictor import Translator
    from vitrail.tasks.translation.search import Search

    given = _texts_or_standard_input(text, file)
    translator = Translator(run)
    usual = translator.search
    errors = translate_file(
        translator,
        file,
        standard_input=given,
        standard_output=sys.stdout.buffer,
        tell=show.line_fault,
        output=output,
        layout="json" if json else "scores" if scores else "text",
        search=Search(
            beam or usual.beam_size,
            usual.length_penalty if length_penalty is None else length_penalty,
            num_best,
            max_length,
            penalty_form or usual.penalty_form,
        ),
        batch_tokens=batch_tokens,
    )
    return EXIT_SOME_FAILED if errors else 0


def _texts_or_standard_input(texts: Sequence[str], file: str | None) -> Any:
    """Return sentences that stand in the command as a stream of lines, or standard input without any."""
    if file is not None and texts:
        raise ConfigError(
            f"{file} and --text were given", expected="one of them", remedy="Leave out the other"
        )
    if not texts:
        return sys.stdin.buffer
    return io.BytesIO("".join(" ".join(text.splitlines()) + "\n" for text in texts).encode())


@app.command(help_epilogue="Example: vitrail classify runs/clip holiday/ --names beach,mountain,city")
def classify(
    run: str,
    files: Files,
    /,
    *,
    names: str | None = None,
    names_file: Path | None = None,
    template: Texts = (),
    top: Count = 3,
    json: Flag = False,
    output: Output = None,
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
    from vitrail.tasks.contrastive.zero_shot import ZeroShotClassifier, check_names, read_templates
    from vitrail.tasks.predicting import ranked_results

    checked, templates = check_names(chosen), read_templates(template)  # before a model is loaded
    check_answer_file(output)
    predictions = ZeroShotClassifier(run, checked, templates=templates).predict(files, top=top)
    return deliver(ranked_results(predictions, "{:.1%}", probability=6), output, as_json=json)


@app.command(help_epilogue="Example: vitrail retrieve runs/clip holiday/ --text 'a dog on a beach'")
def retrieve(
    run: str,
    files: Files,
    /,
    *,
    text: Texts = (),
    by_image: Flag = False,
    top: Count = 5,
    json: Flag = False,
    output: Output = None,
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
    from vitrail.tasks.answer_files import STRUCTURED, check_answer_file
    from vitrail.tasks.contrastive.predictor import ImageTextEncoder
    from vitrail.tasks.contrastive.retrieval import retrieval_results
    from vitrail.tasks.contrastive.retrieval import retrieve as find

    check_answer_file(output, STRUCTURED)
    found = find(ImageTextEncoder(run), files, text, top=top, by_image=by_image)
    return deliver(retrieval_results(found), output, as_json=json)


def deliver(results: FileResults, output: Path | None, *, as_json: bool) -> int:
    """Print predictions as a table or as JSON, or write them to a file; return the exit code.

    Args:
        output: its suffix decides the format.
    """
    from vitrail.tasks.answer_files import write_answers

    if output is not None and results.table:
        write_answers(output, results)
        show.errors(results.errors)
        show.lines([str(output)])
    elif as_json and output is None:
        show.json(results.tree)
    else:
        if results.rows:
            show.table(results.columns, results.rows, texts=(0, 1))
        show.errors(results.errors)
        show.lines(results.notes)
    return EXIT_SOME_FAILED if results.errors else 0
