"""The HTML report of a contrastive run: recalls, curves, and retrieval examples."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

import torch
from PIL import Image

from vitrail.core.errors import DataError
from vitrail.data.findings import number_of
from vitrail.data.text.rows import bounded_row
from vitrail.interpret.draw import to_picture
from vitrail.models.checkpoint import LoadedModel
from vitrail.report.page import picture_uri, section, table
from vitrail.report.sections import RunRecord, headline, training_section, write_run_page
from vitrail.tasks.captioning.dataset import CaptionSplit
from vitrail.tasks.contract import Diagnosis
from vitrail.tasks.contrastive.objective import DEPTHS
from vitrail.tasks.contrastive.predictor import ImageTextEncoder
from vitrail.train.evaluate import Report

THUMBNAIL_PX = 120
BEYOND_CHANCE = 1.5  # times the recall of a random order
SEARCHED_AT_MOST = 1000  # images, for examples
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


class Found(NamedTuple):
    """A caption with its nearest images."""

    caption: str
    images: tuple[tuple[Image.Image, bool], ...]
    """As the model saw them, nearest first, each with whether it is the caption's own."""


def find_examples(
    loaded: LoadedModel, split: CaptionSplit, *, num_captions: int = 8, num_images: int = 5
) -> list[Found]:
    """Retrieve images, spread evenly over a split, for the first captions of some of them.

    Unreadable images are left out.
    """
    encoder = ImageTextEncoder(loaded)
    pixels, indices = [], []
    for index in range(0, len(split), max(1, -(-len(split) // SEARCHED_AT_MOST))):
        try:
            pixels.append(encoder.preprocessing.read(split.images[index]))
        except DataError:
            continue
        indices.append(index)
    if not pixels:
        return []
    embedded = encoder.embed_pixels(torch.stack(pixels))
    chosen = [indices[round(step)] for step in torch.linspace(0, len(indices) - 1, num_captions).tolist()]
    found = []
    for index in dict.fromkeys(chosen):
        caption = split.captions[index][0]
        prepared = encoder.preprocessing.prepare([caption])
        row = bounded_row(encoder.subwords.encode(prepared)[0], encoder.subwords, encoder.config.max_length)
        vector = encoder.embed_rows([row])[0]
        nearest = (embedded @ vector).topk(min(num_images, len(indices))).indices.tolist()
        shown = tuple((to_picture(pixels[each]), indices[each] == index) for each in nearest)
        found.append(Found(caption, shown))
    return found


def conclude_retrieval(report: Report) -> Diagnosis:
    """Compare with chance: a random order has an image among the first k in k of all cases."""
    scores, num_images = report.scores, report.tables["num_images"]
    chance = statistics.fmean(min(depth / num_images, 1.0) for depth in DEPTHS)
    recall = statistics.fmean(scores[f"text_to_image_r{depth}"] for depth in DEPTHS)
    searched = f"{number_of(num_images, 'image')} and {number_of(report.tables['num_texts'], 'text')}"
    result = f"Mean recall {scores['mean_recall']:.1%} among {searched}, both ways, first 1, 5 and 10."
    if recall >= BEYOND_CHANCE * chance or chance == 1:
        return Diagnosis(result)
    return Diagnosis(
        result, (f"Images are found by texts in {recall:.1%}, little more than by chance ({chance:.1%}).",)
    )


def write_retrieval_report(path: Path, record: RunRecord, found: Sequence[Found]) -> None:
    """Write the report, with retrieval examples, as one self-contained HTML file."""
    scores, history = record.report.scores, record.history()
    entries = [
        (f"{scores['mean_recall']:.1%}", "mean recall", "both ways, among the first 1, 5 and 10"),
        (f"{scores['text_to_image_r1']:.1%}", "image found first", "by a caption"),
        (f"{scores['image_to_text_r1']:.1%}", "caption found first", "by an image"),
    ]
    header = ("searched", *(f"first {depth}" for depth in DEPTHS))
    rows = [(name, *(f"{scores[f'{way}_r{depth}']:.1%}" for depth in DEPTHS)) for way, name in WAYS]
    parts = [
        headline(record, entries),
        section("Recall", table(header, rows, numbers=frozenset({1, 2, 3})), RECALL_NOTE),
        _examples(found),
        training_section(history, score="mean_recall", score_name="validation mean recall", note=""),
    ]
    write_run_page(path, record, parts, style=STYLE)


def _examples(found: Sequence[Found]) -> str:
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
