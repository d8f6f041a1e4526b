"""Explanations of files and texts of any task, written as a page, a picture, or a folder of pictures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from vitrail.core.errors import ConfigError, DataError, did_you_mean
from vitrail.data.inputs import list_files
from vitrail.interpret.viewer.explanation import METHODS, Explanation
from vitrail.interpret.viewer.page import is_page, write_explanations

MAX_ON_PAGE = 24  # explanations; each adds up to 3 MB to the page


class ExplainOptions(NamedTuple):
    """Options of ``vitrail explain``."""

    output: Path
    """A page (.html), a picture of one input, or a folder of pictures."""
    text: tuple[str, ...] = ()
    """CLIP only: texts to compare the images with."""
    target: str | None = None
    """Translation or caption to explain, instead of the model's own."""
    subwords: bool = False
    """Translators only: whether alignments are of subwords alone."""
    layer: int | None = None
    """Of pictures of attention."""
    head: int | None = None
    method: str | None = None
    """What pictures show, and pages first; see ``Explanation.relevance``."""
    class_name: str | None = None
    """For class-specific methods; by default the most probable class."""
    threshold: float | None = None
    """Confidence threshold of detections."""


class WrittenExplanations(NamedTuple):
    """Written explanations and errors."""

    files: tuple[Path, ...]
    """The pictures, or the one page."""
    explained: tuple[Explanation, ...]
    """In input order."""
    errors: tuple[tuple[str, str], ...]
    """Unreadable files, each with the reason."""


def explain_files(
    explain: Callable[[Path], Explanation], names: Iterable[str | Path], options: ExplainOptions
) -> WrittenExplanations:
    """Explain images and write a page, a picture of the only one, or a folder of pictures.

    Args:
        explain: explains one file, such as ``Predictor.explain``.
        names: files, folders and glob patterns.

    Raises:
        ConfigError: the method or the class is unknown, or the method not defined for the model; a layer or a
            head does not exist, or was given for a method without; or the output does not fit the number of
            images.
        DataError: no image was given, or none can be read.
        CheckpointError: the output cannot be written.
    """
    output, method, paths = options.output, options.method, list_files(names)
    if method is not None and method not in METHODS:
        remedy = did_you_mean(method, METHODS)
        raise ConfigError(f"there is no method {method!r}", expected=" or ".join(METHODS), remedy=remedy)
    check_output(output, len(paths))
    explained, errors = explain_readable(paths, explain)
    if options.layer is not None or options.head is not None:
        is_chosen = explained[0].reads_patches  # others show attention alone
        _check_picks(
            output, explained[0].method_for(method, options.class_name) if is_chosen else "attention"
        )
    if is_page(output):
        shown = [each.showing(method, options.class_name) for each in explained]
        write_explanations(output, shown, title=f"{len(shown)} images" if len(shown) > 1 else None)
        return WrittenExplanations((output,), tuple(explained), errors)
    files = picture_files(output, [each.name for each in explained])
    for each, file in zip(explained, files, strict=True):
        each.save(file, method, layer=options.layer, head=options.head, class_name=options.class_name)
    return WrittenExplanations(tuple(files), tuple(explained), errors)


def explain_texts(
    explain: Callable[[str], Explanation], texts: Sequence[str], options: ExplainOptions
) -> WrittenExplanations:
    """Explain sentences and write a page of all, or a picture of the only one.

    Raises:
        ConfigError: the output does not fit, the model attends to nothing, or there is no such layer or head.
        DataError: a text is empty or too long.
        CheckpointError: the output cannot be written.
    """
    output = options.output
    if len(texts) > (MAX_ON_PAGE if is_page(output) else 1):
        raise ConfigError(
            f"{len(texts)} sentences were to be explained in {output}",
            expected=f"at most {MAX_ON_PAGE} sentences for an .html page, and one for a picture",
            remedy="Explain them one by one, or write a page",
        )
    explained = tuple(explain(text) for text in texts)
    if len(explained) == 1:
        explained[0].save(output, layer=options.layer, head=options.head)
    else:
        write_explanations(output, explained, title=f"{len(explained)} sentences")
    return WrittenExplanations((output,), explained, ())


def check_output(output: Path, num_images: int) -> None:
    """Refuse more images than fit on a page or a picture.

    Raises:
        ConfigError: there are more.
    """
    most = MAX_ON_PAGE if is_page(output) else 1 if output.suffix else num_images
    if num_images > most:
        raise ConfigError(
            f"{num_images} images were to be explained in {output}",
            expected=f"at most {MAX_ON_PAGE} images for a page, and one for a picture",
            remedy="Name fewer images, or give a folder to write one picture for each",
        )


def explain_readable(
    paths: Sequence[Path], explain: Callable[[Path], Explanation]
) -> tuple[list[Explanation], tuple[tuple[str, str], ...]]:
    """Explain the readable images; return name and reason of the others.

    Raises:
        DataError: none of them can be read.
    """
    explained, errors = [], []
    for path in paths:
        try:
            explained.append(explain(path))
        except DataError as error:
            errors.append((str(path), str(error)))
    if not explained:
        raise DataError(
            f"none of {len(paths)} images can be read; the first: {errors[0][1]}",
            expected="at least one readable image",
            remedy="Correct the paths",
        )
    return explained, tuple(errors)


def picture_files(output: Path, names: Sequence[str], suffix: str = ".png") -> list[Path]:
    """Name one picture per image in a folder; an output with a suffix is the only picture itself.

    Duplicate names get a number.
    """
    if output.suffix:
        return [output]
    taken: set[str] = set()
    files = []
    for each in names:
        stem = name = Path(each).stem
        number = 1
        while name in taken:
            number += 1
            name = f"{stem}-{number}"
        taken.add(name)
        files.append(output / f"{name}{suffix}")
    return files


def _check_picks(output: Path, method: str) -> None:
    """Refuse a layer or head for methods that show all."""
    if is_page(output) or method != "attention":
        shown = f"the page {output}, which shows all of them" if is_page(output) else f"the method {method}"
        raise ConfigError(
            f"a layer or a head was named for {shown}",
            expected="pictures of the method attention, which shows one layer",
            remedy="Choose --method attention and a .png or a folder, or name no layer and no head",
        )
