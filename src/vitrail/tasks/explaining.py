"""Explanations of files and texts of any task, written as a page, a picture, or a folder of pictures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from vitrail.core.durable import atomic_write
from vitrail.core.errors import ConfigError, DataError, check_name
from vitrail.data.inputs import list_files
from vitrail.interpret.viewer.explanation import METHODS, Explanation, Pick, has_place
from vitrail.interpret.viewer.page import explanations_html, is_page

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
    """The only one in pictures of attention, the first one on pages."""
    head: int | None = None
    method: str | None = None
    """What pictures show, and pages first; see ``Explanation.relevance``."""
    class_name: str | None = None
    """For class-specific methods; by default the most probable class."""
    threshold: float | None = None
    """Confidence threshold of detections."""

    @property
    def pick(self) -> Pick:
        return {"layer": self.layer, "head": self.head, "class_name": self.class_name}


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
    paths = list_files(names)
    if options.method is not None:
        check_name("method", options.method, METHODS)
    if options.output.suffix:
        _check_count(len(paths), "images", options.output)
    explained, errors = [], []
    for path in paths:
        try:
            explained.append(explain(path))
        except DataError as error:
            if len(paths) == 1:
                raise
            errors.append((str(path), str(error)))
    if not explained:
        raise DataError(
            f"none of {len(paths)} images can be read; the first: {errors[0][1]}",
            expected="at least one readable image",
            remedy="Correct the paths",
        )
    return _write(explained, tuple(errors), options)


def explain_texts(
    explain: Callable[[str], Explanation], texts: Sequence[str], options: ExplainOptions
) -> WrittenExplanations:
    """Explain sentences and write a page of all, or a picture of the only one.

    Raises:
        ConfigError: the output does not fit, the model attends to nothing, or there is no such layer or head.
        DataError: a text is empty or too long.
        CheckpointError: the output cannot be written.
    """
    _check_count(len(texts), "sentences", options.output)
    explained = [explain(text) for text in texts]
    if explained[0].part().name == "occlusion" and has_place(options.pick):
        raise ConfigError(
            "a layer or a head was named for a model without attention",
            expected="a model with attention, such as a Transformer",
            remedy="Leave out --layer and --head: the picture shows what each word adds to the label",
        )
    return _write(explained, (), options._replace(method=None, class_name=None))


def _check_count(count: int, things: str, output: Path) -> None:
    if count > (MAX_ON_PAGE if is_page(output) else 1):
        folder = ", or give a folder for a picture of each" if things == "images" else ""
        raise ConfigError(
            f"{count} {things} were to be explained in {output}",
            expected=f"at most {MAX_ON_PAGE} {things} for an .html page, and one for a picture",
            remedy=f"Name fewer{folder}",
        )


def _write(
    explained: Sequence[Explanation], errors: tuple[tuple[str, str], ...], options: ExplainOptions
) -> WrittenExplanations:
    """Write a page of all, or one picture for each."""
    output = options.output
    if is_page(output):
        shown = [each.showing(options.method, **options.pick) for each in explained]
        atomic_write(output, explanations_html(shown))
        return WrittenExplanations((output,), tuple(explained), errors)
    files = picture_files(output, [each.name for each in explained]) if explained[0].picture else [output]
    for each, file in zip(explained, files, strict=True):
        each.save(file, options.method, **options.pick)
    return WrittenExplanations(tuple(files), tuple(explained), errors)


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
