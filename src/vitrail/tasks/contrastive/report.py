"""The HTML report of a contrastive run: recalls, curves, and retrieval examples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

from PIL import Image

from vitrail.report.page import picture_uri, section, table
from vitrail.report.sections import (
    RunRecord,
    headline,
    training_section,
    write_run_page,
)
from vitrail.tasks.contrastive.scores import DEPTHS

THUMBNAIL_PX = 120
WAYS = (("image_to_text", "captions of an image"), ("text_to_image", "the image of a caption"))
NOTE = "The nearest images of a caption among all of the test split; its own has a frame."
RECALL_NOTE = (
    "How often a right one is among the first 1, 5 and 10. It depends on how many images and captions are "
    "searched, which the signature says."
)
STYLE = (
    ".found{display:flex;flex-wrap:wrap;gap:8px;align-items:center;margin:.3em 0 1.2em}"
    f".found img{{height:{THUMBNAIL_PX}px;border-radius:5px;border:3px solid transparent}}"
    ".found img.own{border-color:var(--good)}"
)


@runtime_checkable
class FoundImages(Protocol):
    """A caption with its nearest images."""

    @property
    def caption(self) -> str: ...

    @property
    def images(self) -> tuple[tuple[Image.Image, bool], ...]:
        """Nearest first, each with whether it is the caption's own."""
        ...


class Recall(NamedTuple):
    """One row of the table."""

    way: str
    """Direction of the retrieval."""
    shares: tuple[str, ...]
    """Recall at 1, 5 and 10."""


@dataclass(frozen=True, kw_only=True)
class RetrievalReportInputs(RunRecord):
    """The content of a contrastive run's report."""

    found: Sequence[FoundImages] = ()
    """Retrieval examples."""


def write_retrieval_report(path: Path, inputs: RetrievalReportInputs) -> None:
    """Write the report as one self-contained HTML file.

    Args:
        path: the HTML file; replaced atomically.

    Raises:
        CheckpointError: the disk is full or not writable; a former page is as it was.
    """
    scores, history = inputs.report.scores, inputs.history()
    entries = [
        (f"{scores['mean_recall']:.1%}", "mean recall", "both ways, among the first 1, 5 and 10"),
        (f"{scores['text_to_image_r1']:.1%}", "image found first", "by a caption"),
        (f"{scores['image_to_text_r1']:.1%}", "caption found first", "by an image"),
    ]
    parts = [
        headline(inputs, entries),
        section("Recall", _recalls(scores), RECALL_NOTE),
        _examples(inputs.found),
        training_section(history, score=history.mean_recall, score_name="validation mean recall", note=""),
    ]
    write_run_page(path, inputs, parts, style=STYLE)


def _recalls(scores: dict[str, float]) -> str:
    header = ("searched", *(f"first {depth}" for depth in DEPTHS))
    rows = [Recall(name, tuple(f"{scores[f'{way}_r{depth}']:.1%}" for depth in DEPTHS)) for way, name in WAYS]
    return table(header, [(row.way, *row.shares) for row in rows], numbers=frozenset({1, 2, 3}))


def _examples(found: Sequence[FoundImages]) -> str:
    if not found:
        return ""
    content = ""
    for each in found:
        pictures = "".join(
            f'<img alt="{"its own image" if is_own else "another image"}"{" class=own" if is_own else ""} '
            f'src="{picture_uri(picture, longest=2 * THUMBNAIL_PX)}">'
            for picture, is_own in each.images
        )
        content += f"<p>{escape(each.caption)}</p><div class=found>{pictures}</div>"
    return section("Found by captions", content, NOTE)
