"""What captioners answer."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from vitrail.cli.show.lines import make_table, show_errors

if TYPE_CHECKING:
    from vitrail.tasks.captioning.predictor import Caption


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
