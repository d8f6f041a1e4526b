"""Retrieval: the images of a text, and the texts of an image."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from vitrail.core.errors import ConfigError
from vitrail.data.inputs import ImageInput
from vitrail.tasks.answer_files import FileResults
from vitrail.tasks.contrastive.predictor import ImageTextEncoder


class Match(NamedTuple):
    """A retrieved image or text."""

    name: str
    """Path of the image, or the text."""
    cosine: float


class Retrieved(NamedTuple):
    """The results of one query: a text, or the path of an image."""

    query: str
    matches: tuple[Match, ...]
    """Nearest first."""


class Retrieval(NamedTuple):
    """The results of all queries, in their order."""

    results: tuple[Retrieved, ...]
    errors: tuple[tuple[str, str], ...]
    """Unreadable files and the reasons."""
    by_image: bool = False
    """Whether the queries are images."""

    def to_json(self) -> dict[str, Any]:
        results = [
            {"query": query, "matches": [match._asdict() for match in matches]}
            for query, matches in self.results
        ]
        return {"results": results, "errors": [{"source": name, "error": why} for name, why in self.errors]}


def retrieve(
    encoder: ImageTextEncoder,
    inputs: ImageInput | Iterable[ImageInput],
    texts: Sequence[str],
    *,
    top: int = 5,
    by_image: bool = False,
) -> Retrieval:
    """Return the nearest images of each text, or with ``by_image`` the nearest texts of each image.

    Args:
        inputs: files, folders, glob patterns or images in memory.

    Raises:
        ConfigError: there is no text.
        DataError: a text holds no word or is too long; a folder or pattern holds no image.
    """
    if not texts:
        raise ConfigError(
            "no text was given to compare images with",
            expected="at least one text",
            remedy="Give it as in --text 'a dog on a beach'",
        )
    written = encoder.embed_texts(texts)
    images = encoder.embed_images(inputs)
    names, cosines = images.read_names, images.embeddings @ written.T
    queries, found = (names, list(texts)) if by_image else (list(texts), names)
    best = (cosines if by_image else cosines.T).topk(min(top, len(found)), dim=-1)
    rows = zip(queries, best.indices.tolist(), best.values.tolist(), strict=True)
    results = tuple(
        Retrieved(query, tuple(Match(found[index], value) for index, value in zip(*row, strict=True)))
        for query, *row in rows
    )
    errors = tuple((images.names[index], error) for index, error in sorted(images.errors.items()))
    return Retrieval(results, errors, by_image)


def retrieval_results(found: Retrieval) -> FileResults:
    """Return the results of each query, nearest first, in every output format but plain lines."""
    tree = found.to_json()
    table: list[tuple[object, ...]] = [("query", "rank", "found", "cosine", "error")]
    rows: list[tuple[str, ...]] = []
    for result in found.results:
        for rank, match in enumerate(result.matches, start=1):
            table.append((result.query, rank, match.name, f"{match.cosine:.6f}", ""))
            rows.append((result.query if rank == 1 else "", match.name, f"{match.cosine:.3f}"))
    for name, error in found.errors:
        query, image = (name, "") if found.by_image else ("", name)
        table.append((query, "", image, "", error))
    return FileResults(
        tree,
        columns=("query", "found", "cosine"),
        rows=rows,
        errors=found.errors,
        table=table,
        records=[*tree["results"], *tree["errors"]],
    )
