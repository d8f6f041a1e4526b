"""What trained models answer: classes and boxes of files."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from vitrail.cli.show.lines import make_table, show_errors

if TYPE_CHECKING:
    from vitrail.tasks.captioning.predictor import Caption
    from vitrail.tasks.classification.predictor import Prediction
    from vitrail.tasks.contrastive.retrieval import Retrieval
    from vitrail.tasks.detection.detections import Detections


def show_predictions(predictions: Sequence[Prediction]) -> None:
    """Write one row for each image, its most probable classes first; errors go to the error stream."""
    table = make_table("image", "class", "probability")
    table.columns[2].justify = "right"
    for prediction in predictions:
        for place, (name, probability) in enumerate(prediction.scores):
            table.add_row(Text(prediction.source if place == 0 else ""), Text(name), f"{probability:.1%}")
    if table.row_count:
        Console().print(table)
    show_errors((prediction.source, prediction.error) for prediction in predictions if prediction.error)


def show_detections(found: Sequence[Detections]) -> None:
    """Write one row for each image and class, with how many boxes; errors go to the error stream."""
    table = make_table("image", "class", "boxes", "best score")
    for column in table.columns[2:]:
        column.justify = "right"
    for each in found:
        if each.error is not None:
            continue
        best: dict[int, float] = {}
        for label, score in zip(each.labels.tolist(), each.scores.tolist(), strict=True):
            best[label] = max(score, best.get(label, 0.0))
        counts = Counter(each.labels.tolist())
        for place, (label, count) in enumerate(counts.most_common()):
            name = Text(each.name if place == 0 else "")
            table.add_row(name, Text(each.class_names[label]), str(count), f"{best[label]:.2f}")
        if not counts:
            table.add_row(Text(each.name), "none", "0", "")
    if table.row_count:
        Console().print(table)
    show_errors((each.name, each.error) for each in found if each.error is not None)


def show_captions(captions: Sequence[Caption]) -> None:
    """Write one row for each image and caption, the best first; errors go to the error stream."""
    table = make_table("image", "caption", "score")
    table.columns[2].justify = "right"
    for caption in captions:
        for place, (text, score) in enumerate(caption.texts):
            name = Text(caption.source if place == 0 else "", overflow="fold")
            table.add_row(name, Text(text or "(nothing)"), f"{score:.2f}")
    if table.row_count:
        Console().print(table)
    show_errors((caption.source, caption.error) for caption in captions if caption.error)


def show_unknown_words(words: Sequence[str]) -> None:
    """Write to the error stream which words a captioner does not know; nothing where it knows all."""
    if words:
        subject = "1 word is" if len(words) == 1 else f"{len(words)} words are"
        listed = ", ".join(words)
        sys.stderr.write(f"vitrail: warning: {subject} not in the model's vocabulary: {listed}\n")


def show_retrieval(found: Retrieval) -> None:
    """Write what is nearest to each query, the nearest first; errors go to the error stream."""
    table = make_table("query", "found", "cosine")
    table.columns[2].justify = "right"
    for result in found.results:
        for place, match in enumerate(result.matches):
            table.add_row(Text(result.query if place == 0 else ""), Text(match.name), f"{match.cosine:.3f}")
    if table.row_count:
        Console().print(table)
    show_errors(found.errors)
