"""Commands that use a trained model: explain, translate."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from vitrail.cli.app import EXIT_SOME_FAILED, Count, Flag, Share, app, only_detectors, refuse_options
from vitrail.core.errors import ConfigError

if TYPE_CHECKING:
    from vitrail.models.checkpoint import LoadedModel


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
    class_: Annotated[str | None, Parameter(name="--class")] = None,
    threshold: Share | None = None,
    data: str | None = None,
    images: Count | None = None,
    seed: int | None = None,
    output: Annotated[Path | None, Parameter(name=["--output", "-o"])] = None,
) -> int:
    """Show where the model looks: one page with every layer and head, or overlay pictures.

    Without a file and a text, draw what it has learned: filters, positions, and what its heads do.

    Args:
        run: A run directory or a checkpoint folder.
        files: Image files, folders or quoted patterns; image models only.
        text: Translators: sentence to translate, whose alignment is shown. CLIPs: text to compare the images
            with. May be given several times.
        target: Translation or caption to explain, instead of the model's own.
        layer: Layer of a picture of attention, counted from 0, negative from the end.
        head: Head of that layer, counted from 0.
        method: Shown first: rollout through all layers, attention of the last, or class-specific: relevance
            (gradients times attention), gradient_input, occlusion or integrated_gradients.
        class_: Class for the class-specific methods. Default: the most probable one.
        threshold: Detectors only: confidence threshold. Default: the one tuned on the run's validation set.
        data: Without a file: data to measure heads on. Default: the run's own.
        images: Without a file: number of images or sentences sampled. Default: 128.
        seed: Without a file, of the drawing; 0 otherwise.
        output: An .html page, a .png picture of one image or text, or a folder for a picture of each;
            explain.html otherwise, and learned.html without a file.
    """
    if not text and not files:
        of_one = {"--target": target, "--method": method, "--class": class_}
        refuse_options({**of_one, "--layer": layer, "--head": head, "--threshold": threshold}, needs="a file")
        return explain_learned(run, data=data, images=images, seed=seed, output=output)
    refuse_options({"--data": data, "--images": images, "--seed": seed}, needs="neither files nor --text")
    output = Path("explain.html") if output is None else output
    if text and not files:
        of_images = {"--method": method, "--class": class_, "--threshold": threshold}
        refuse_options(of_images, needs="a model of images")
        return _explain_texts(run, text, target=target, output=output, layer=layer, head=head)

    picks = {"layer": layer, "head": head}
    return _explain_files(
        run,
        files or [],
        output,
        text=text,
        target=target,
        method=method,
        class_=class_,
        threshold=threshold,
        **picks,
    )


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
    """Translate the lines of a file or of standard input, in order.

    Args:
        run: A run directory, a checkpoint folder of a translator, or its export for CTranslate2.
        file: UTF-8 text, one sentence per line, or its .gz; - or nothing reads standard input.
        beam: Beam size; 1 is greedy and fastest. Default: as in the run's evaluation.
        length_penalty: Length exponent; 0 prefers short translations, 2 long ones. Default: as for beam.
        num_best: Number of translations per line, numbered.
        max_length: Most subwords of a translation. Default: twice the source's plus ten.
        batch_tokens: Subwords per batch.
        scores: Write the score before each translation.
        json: Write one JSON object per line.
        output: Output file instead of standard output.
    """
    import sys

    from vitrail.cli import show as terminal
    from vitrail.tasks.translation.files import translate_file
    from vitrail.tasks.translation.predictor import Translator
    from vitrail.tasks.translation.search import Search

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


def _explain_files(
    run: Path,
    files: list[str],
    output: Path,
    *,
    text: tuple[str, ...],
    target: str | None,
    method: str | None,
    class_: str | None,
    threshold: float | None,
    layer: int | None,
    head: int | None,
) -> int:
    """Explain images by the kind of the model, and refuse options that do not apply."""
    from vitrail.engines.export.package import is_package
    from vitrail.engines.loading import cannot_explain, load_any

    if is_package(run):
        raise cannot_explain(run)
    loaded = load_any(run)
    kind = loaded.preprocessing.get("task")
    if text and kind != "contrastive":
        raise _both_given()
    of_class = {"--method": method, "--class": class_}
    picks = {"layer": layer, "head": head}
    if kind == "detection":
        given = {"--target": target, "--layer": layer, "--head": head, **of_class}
        refuse_options(given, needs="a model without boxes")
        return _explain_boxes(loaded, files, threshold=threshold, output=output)
    if threshold is not None:
        raise only_detectors("--threshold", run)
    if kind == "captioning":
        refuse_options(of_class, needs="a classifier")
        return explain_captions(loaded, files, output=output, target=target, layer=layer, head=head)
    refuse_options({"--target": target}, needs="a translator or a captioner")
    if kind == "contrastive":
        return _explain_clip(loaded, files, text, output=output, method=method, class_name=class_, **picks)
    return _explain_images(
        loaded, files, output=output, method=method, class_name=class_, layer=layer, head=head
    )


def _explain_images(
    loaded: LoadedModel,
    files: list[str],
    *,
    output: Path,
    method: str | None,
    class_name: str | None,
    layer: int | None,
    head: int | None,
) -> int:
    from vitrail.tasks.classification.predictor import Predictor
    from vitrail.tasks.explaining import explain_files

    explained = explain_files(
        Predictor(loaded).explain,
        files,
        output=output,
        method=method,
        class_name=class_name,
        layer=layer,
        head=head,
    )
    return _show_explained(explained.files, explained.errors)


def _explain_clip(
    loaded: LoadedModel,
    files: list[str],
    texts: tuple[str, ...],
    *,
    output: Path,
    method: str | None,
    class_name: str | None,
    layer: int | None,
    head: int | None,
) -> int:
    from vitrail.tasks.contrastive.predictor import ImageTextEncoder
    from vitrail.tasks.explaining import explain_files

    encoder = ImageTextEncoder(loaded)
    explained = explain_files(
        lambda path: encoder.explain(path, texts),
        files,
        output=output,
        method=method,
        class_name=class_name,
        layer=layer,
        head=head,
    )
    return _show_explained(explained.files, explained.errors)


def _explain_texts(
    run: Path,
    texts: tuple[str, ...],
    *,
    target: str | None,
    output: Path,
    layer: int | None,
    head: int | None,
) -> int:
    from vitrail.cli import show as terminal
    from vitrail.tasks.explaining import explain_texts
    from vitrail.tasks.translation.explanation import explain_text
    from vitrail.tasks.translation.predictor import Translator

    if target is not None and len(texts) > 1:
        raise ConfigError(
            f"a translation was given for {len(texts)} sentences",
            expected="one --text with its --target",
            remedy="Explain them one by one",
        )
    translator = Translator(run)
    explain_texts(
        lambda text: explain_text(translator, text, target=target),
        texts,
        output=output,
        layer=layer,
        head=head,
    )
    terminal.show_lines([str(output)])
    return 0


def _explain_boxes(loaded: LoadedModel, files: list[str], *, threshold: float | None, output: Path) -> int:
    from vitrail.tasks.detection.predictor import Detector
    from vitrail.tasks.explaining import explain_files

    detector = Detector(loaded)
    least = detector.threshold_of(threshold)  # refused before any file is read
    explained = explain_files(lambda path: detector.explain(path, threshold=least), files, output=output)
    return _show_explained(explained.files, explained.errors)


def _show_explained(files: Iterable[Path], errors: tuple[tuple[str, str], ...]) -> int:
    from vitrail.cli import show as terminal

    terminal.show_lines(str(path) for path in files)
    terminal.show_errors(errors)
    return EXIT_SOME_FAILED if errors else 0


def _both_given() -> ConfigError:
    return ConfigError(
        "files and --text were both given",
        expected="image files for an image model, --text for a translator, or both for a CLIP",
        remedy="Name the images, or give a sentence as in --text 'A dog runs.'",
    )


LEARNED_PAGE = Path("learned.html")


def explain_learned(
    run: Path, *, data: str | None, images: int | None, seed: int | None, output: Path | None
) -> int:
    """Write filters, positions and what heads do, and print the layers."""
    from vitrail.cli import show as terminal
    from vitrail.cli.show.models import show_learned
    from vitrail.studies.inspecting import NUM_SAMPLES, inspect_learned
    from vitrail.studies.learned_page import check_learned_path, write_learned

    path = LEARNED_PAGE if output is None else output
    check_learned_path(path)
    count = NUM_SAMPLES if images is None else images
    with terminal.show_images_done(count) as listen:
        found = inspect_learned(run, data=data, num_samples=count, seed=seed or 0, on_sample=listen)
    written = write_learned(path, found, title=f"What {run.name} has learned")
    show_learned(found)
    terminal.show_lines(str(file) for file in written)
    return 0


def explain_captions(
    loaded: LoadedModel,
    files: list[str],
    *,
    output: Path,
    target: str | None,
    layer: int | None,
    head: int | None,
) -> int:
    """Explain each word of a caption."""
    from vitrail.cli import show as terminal
    from vitrail.cli.show.answers import show_unknown_words
    from vitrail.tasks.captioning.explanation import explain_caption_files
    from vitrail.tasks.captioning.predictor import Captioner

    explained = explain_caption_files(
        Captioner(loaded), files, output=output, caption=target, layer=layer, head=head
    )
    terminal.show_lines(str(path) for path in explained.files)
    terminal.show_errors(explained.errors)
    for each in explained.explained:
        show_unknown_words(each.answer.unknown_words)
    return EXIT_SOME_FAILED if explained.errors else 0
