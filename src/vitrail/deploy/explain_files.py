"""Explanations of many files, written as pictures or as one page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from vitrail.deploy.explanation import Explanation
from vitrail.deploy.inputs import list_files
from vitrail.deploy.predictor import Predictor
from vitrail.errors import ConfigError, DataError
from vitrail.report.explain_page import write_explain_page

PAGE_SUFFIXES = (".html", ".htm")


class Explained(NamedTuple):
    """What became of the files that were to be explained."""

    written: tuple[Path, ...]
    """Pages or pictures that were written."""
    errors: dict[str, str]
    """Files that could not be used, with the reason."""


def explain_files(
    predictor: Predictor, names: Sequence[str], *, output: Path, method: str = "rollout"
) -> Explained:
    """Explain image files; one that cannot be read is left out.

    Args:
        predictor: the model.
        names: files, folders or glob patterns.
        output: an .html file for one page about all images; a picture file for the overlay of one image;
            any other name is a folder, which gets an overlay for each image.
        method: what an overlay shows, see ``Explanation.relevance``; a page shows every method.

    Raises:
        ConfigError: the method is unknown, the model has no attention, or one picture is to show many images.
        DataError: no file could be used.
    """
    files = list_files(names)
    one_picture = output.suffix and output.suffix.lower() not in PAGE_SUFFIXES
    if one_picture and len(files) > 1:
        raise ConfigError(
            f"{output} is one picture and there are {len(files)} images",
            expected="a page such as explanation.html, or a folder",
            remedy="Name one image, or another output",
        )
    explanations, errors = _explain_each(predictor, files)
    if not explanations:
        raise DataError(
            "; ".join(errors.values()).rstrip("."),
            expected="at least one readable image",
            remedy="Check the files",
        )
    output.parent.mkdir(parents=True, exist_ok=True)
    if output.suffix.lower() in PAGE_SUFFIXES:
        write_explain_page(output, [explanation.for_page() for explanation in explanations])
        return Explained((output,), errors)
    if one_picture:
        explanations[0].save(output, method)
        return Explained((output,), errors)
    output.mkdir(exist_ok=True)
    written = []
    for number, explanation in enumerate(explanations):
        path = output / f"{number:03d}-{Path(explanation.name).stem}-{method}.png"
        explanation.save(path, method)
        written.append(path)
    return Explained(tuple(written), errors)


def _explain_each(predictor: Predictor, files: Sequence[Path]) -> tuple[list[Explanation], dict[str, str]]:
    explanations, errors = [], {}
    for file in files:
        try:
            explanations.append(predictor.explain(file))
        except DataError as error:
            errors[str(file)] = str(error)
    return explanations, errors
