"""Explanations of many images: of files, as pictures or one page; of samples, for the report of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

from vitrail.core.errors import ConfigError, DataError, did_you_mean
from vitrail.data.inputs import list_files
from vitrail.data.sampling import SampleSource
from vitrail.interpret.draw import to_picture
from vitrail.interpret.viewer.explain_page import write_explain_page
from vitrail.tasks.classification.explanation import METHODS, Explanation
from vitrail.tasks.classification.predictor import Predictor
from vitrail.tasks.classification.report import ExplainedImage
from vitrail.tasks.classification.scores import ClassificationTables

MAX_ON_PAGE = 24  # images; each adds up to 2 MB to the page
Explained = TypeVar("Explained")


class WrittenExplanations(NamedTuple):
    """What was written, and what could not be."""

    files: tuple[Path, ...]
    """The pictures, or the one page."""
    explained: tuple[Explanation, ...]
    """The explanations, in the order of the images."""
    errors: tuple[tuple[str, str], ...]
    """Images that could not be read, each with the reason."""


def explain_files(
    predictor: Predictor,
    names: Iterable[str | Path],
    *,
    output: str | Path = "explain.html",
    method: str | None = None,
    class_name: str | None = None,
    layer: int | None = None,
    head: int | None = None,
) -> WrittenExplanations:
    """Explain images and write a page, a picture, or a folder of pictures.

    Args:
        predictor: the model.
        names: files, folders and glob patterns.
        output: a page (.html) for all images, a picture (such as .png) for one image, or a folder, a name
            without a suffix, for one picture for each image.
        method: what pictures show, and a page first: ``rollout``, ``attention`` of the last layer,
            ``relevance``, ``gradient_input``, ``occlusion`` or ``integrated_gradients``. None means rollout
            where all layers attend over one set of tokens, otherwise attention, and occlusion without any.
        class_name: the class whose relevance is shown, the most probable by default; for the last four.
        layer: index of the layer that pictures of ``attention`` show, the last by default; a page shows all.
        head: index of the head that they show; all joined by default.

    Raises:
        ConfigError: the method or the class is unknown, or the method not defined for the model; a layer or a
            head does not exist, or was named for what shows no single one; or the output does not fit the
            number of images.
        DataError: no image was named, or none of them can be read.
        CheckpointError: the output cannot be written.
    """
    output, paths = Path(output), list_files(names)
    if method is not None and method not in METHODS:
        remedy = did_you_mean(method, METHODS)
        raise ConfigError(f"there is no method {method!r}", expected=" or ".join(METHODS), remedy=remedy)
    check_output(output, len(paths))
    explained, errors = explain_readable(paths, predictor.explain)
    if layer is not None or head is not None:
        _check_picks(output, explained[0].method_for(method, class_name))
    if is_page(output):
        shown = [each.for_page(method, class_name=class_name) for each in explained]
        title = f"Attention over {len(explained)} images" if len(explained) > 1 else explained[0].name
        write_explain_page(output, shown, title=title)
        return WrittenExplanations((output,), tuple(explained), errors)
    files = picture_files(output, [each.name for each in explained])
    for each, file in zip(explained, files, strict=True):
        each.save(file, method, layer=-1 if layer is None else layer, head=head, class_name=class_name)
    return WrittenExplanations(tuple(files), tuple(explained), errors)


def _check_picks(output: Path, method: str) -> None:
    """Refuse to pick a layer or a head where none is shown alone."""
    if is_page(output) or method != "attention":
        shown = f"the page {output}, which shows all of them" if is_page(output) else f"the method {method}"
        raise ConfigError(
            f"a layer or a head was named for {shown}",
            expected="pictures of the method attention, which shows one layer",
            remedy="Choose --method attention and a .png or a folder, or name no layer and no head",
        )


def is_page(output: Path) -> bool:
    """Tell whether a name is one of a page."""
    return output.suffix.lower() in (".html", ".htm")


def check_output(output: Path, num_images: int) -> None:
    """Refuse more images than a page or a picture can show.

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
    paths: Sequence[Path], explain: Callable[[Path], Explained]
) -> tuple[list[Explained], tuple[tuple[str, str], ...]]:
    """Explain the images that can be read; of the others, return name and reason.

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
    """Name a picture after each image, in a folder; an output with a suffix is the only picture itself.

    Equal names of different folders get a number.
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


def explain_samples(
    predictor: Predictor,
    source: SampleSource,
    tables: ClassificationTables,
    rows: Sequence[int],
    *,
    names: Sequence[str] = (),
) -> list[ExplainedImage]:
    """Explain samples of an evaluated source, for the report; without overlays where a model has no maps.

    Args:
        predictor: the model that was evaluated.
        source: the samples that were evaluated.
        tables: what the evaluation found.
        rows: places in the tables, as ``most_confident_errors`` and ``examples_of_each_class`` give them.
        names: what the samples of the source are called; their indices by default.
    """
    images = []
    method, layer = None, None
    for row in rows:
        index = tables.indices[row]
        pixels = source.load(index, None).image
        name = names[index] if names else f"image {index}"
        try:
            explanation = predictor.explain_pixels(pixels, name, layer=layer)
            if method is None and explanation.maps:
                method = explanation.default_method
                layer = None if method == "rollout" else -1  # the others are not shown and may be large
            overlay = explanation.overlay(method) if explanation.maps else None
        except ConfigError:  # this model has no maps, as the report says
            overlay = None
        images.append(
            ExplainedImage(
                picture=to_picture(pixels),
                overlay=overlay,
                name=name,
                true=predictor.class_names[tables.labels[row]],
                # The tables', not this single forward pass's: rounding could turn a tie.
                predicted=predictor.class_names[tables.predicted[row]],
                confidence=tables.confidence[row],
            )
        )
    return images
