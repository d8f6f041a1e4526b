"""Output files of predictions: JSON, JSON lines, tables or plain lines, by file name suffix."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from vitrail.core.durable import atomic_write
from vitrail.core.errors import ConfigError

if TYPE_CHECKING:
    from vitrail.tasks.captioning.predictor import Caption
    from vitrail.tasks.classification.predictor import Prediction
    from vitrail.tasks.contrastive.retrieval import Retrieval

STRUCTURED = (".json", ".jsonl", ".csv", ".tsv")
SUFFIXES = (*STRUCTURED, ".txt")


@dataclass(frozen=True, kw_only=True)
class Answers:
    """The same predictions in every output format."""

    tree: Any
    """All predictions as plain JSON values, for ``.json``."""
    records: Sequence[Any]
    """Plain JSON values, one per line of ``.jsonl``."""
    columns: tuple[str, ...]
    """Header of ``.csv`` and ``.tsv``."""
    rows: Sequence[Sequence[object]]
    """Rows of the table."""
    lines: Sequence[str] = ()
    """The lines of ``.txt``."""


class FileResults(NamedTuple):
    """Predictions for files in every output format."""

    tree: Any
    """Plain JSON values."""
    columns: tuple[str, ...]
    """Header of the table; all columns after the second are numbers."""
    rows: Sequence[tuple[str, ...]]
    errors: list[tuple[str, str]]
    """Unreadable files, each with the reason."""
    answers: Answers | None = None
    """Predictions still to be written to ``output``, if any."""
    notes: tuple[str, ...] = ()
    """Lines that follow the table."""


def check_answer_file(path: Path, suffixes: Sequence[str] = SUFFIXES) -> None:
    """Check the suffix of an output file before anything is computed for it.

    Args:
        suffixes: the supported ones.

    Raises:
        ConfigError: another suffix.
    """
    if path.suffix.lower() not in suffixes:
        raise ConfigError(
            f"{path} has no suffix of a known form",
            expected=f"a name that ends in {', '.join(suffixes)}",
            remedy="Choose one of these",
        )


def write_answers(path: Path, answers: Answers) -> None:
    """Write predictions in the format of the file's suffix.

    Raises:
        ConfigError: unknown suffix.
        CheckpointError: the disk is full or not writable; a former file is as it was.
    """
    check_answer_file(path)
    suffix = path.suffix.lower()
    if suffix == ".json":
        content = json.dumps(answers.tree, indent=2, ensure_ascii=False) + "\n"
    elif suffix == ".jsonl":
        content = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in answers.records)
    elif suffix == ".txt":
        content = "".join(f"{line}\n" for line in answers.lines)
    else:
        text = io.StringIO()
        writer = csv.writer(text, delimiter="\t" if suffix == ".tsv" else ",", lineterminator="\n")
        writer.writerows((answers.columns, *answers.rows))
        content = text.getvalue()
    atomic_write(path, content)


def caption_answers(captions: Sequence[Caption]) -> Answers:
    """One table row per image, and its best caption as plain line; ``vitrail train`` reads these tables."""
    tree = [caption.to_json() for caption in captions]
    return Answers(
        tree=tree,
        records=tree,
        columns=("image", "caption", "score", "error"),
        rows=[
            (each.source, each.text, "" if each.error else f"{each.score:.4f}", each.error or "")
            for each in captions
        ],
        lines=[each.text for each in captions],
    )


def class_answers(predictions: Sequence[Prediction]) -> Answers:
    """One table row per image and class, most probable first, and the best class as plain line."""
    tree = [prediction.to_json() for prediction in predictions]
    rows: list[tuple[object, ...]] = []
    for each in predictions:
        if each.error:
            rows.append((each.source, "", "", "", each.error))
        for rank, (name, probability) in enumerate(each.scores, start=1):
            rows.append((each.source, rank, name, f"{probability:.6f}", ""))
    return Answers(
        tree=tree,
        records=tree,
        columns=("image", "rank", "class", "probability", "error"),
        rows=rows,
        lines=[each.label for each in predictions],
    )


def retrieval_results(found: Retrieval) -> FileResults:
    """Return the results of each query, nearest first, in every output format but plain lines."""
    tree = found.to_json()
    rows: list[tuple[object, ...]] = [
        (result.query, rank, match.name, f"{match.cosine:.6f}", "")
        for result in found.results
        for rank, match in enumerate(result.matches, start=1)
    ]
    for name, error in found.errors:
        query, image = (name, "") if found.by_image else ("", name)
        rows.append((query, "", image, "", error))
    answers = Answers(
        tree=tree,
        records=[*tree["results"], *tree["errors"]],
        columns=("query", "rank", "found", "cosine", "error"),
        rows=rows,
    )
    shown = [
        ("" if rank else result.query, match.name, f"{match.cosine:.3f}")
        for result in found.results
        for rank, match in enumerate(result.matches)
    ]
    return FileResults(tree, ("query", "found", "cosine"), shown, list(found.errors), answers)
