"""The HTML report of a captioning run: scores, captions, and the image regions behind their words."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from vitrail.core.errors import DataError
from vitrail.data.findings import number_of
from vitrail.data.images import read_image
from vitrail.interpret.viewer.explanation import Explanation
from vitrail.report.page import picture_uri, section
from vitrail.report.sections import RunRecord, headline, training_section, write_run_page
from vitrail.tasks.captioning.dataset import CaptionSplit
from vitrail.tasks.captioning.scores import CaptionedImage, CaptionScores, CaptionTables
from vitrail.tasks.contract import Diagnosis
from vitrail.tasks.generation import generation_tiles, rank_rows, text_problems, typical_rows
from vitrail.train.evaluate import Report

NUM_SHOWN = 8  # images per section
PICTURE_PX, STRIP_PX = 260, 1150
LOSS_NOTE = (
    "The training loss is measured with dropout, smoothed labels and the penalty of attention, so it may lie "
    "higher."
)
TYPICAL_NOTE = "Images around the median CIDEr: typical, not flattering."
WORST_NOTE = (
    "The lowest CIDEr, which counts n-grams in common with what people wrote. Look here for wrong pairs "
    "first; another way to say it may be right and low."
)
BEST_NOTE = "The highest CIDEr."
STRIP_NOTE = (
    "Typical images; over each word, what it was read from, the mean over heads and layers. vitrail explain "
    "RUN IMAGE shows every layer and head. A bright patch was attended to; that does not prove it decided."
)
STYLE = (
    ".signature+.signature{margin-top:.35em}"
    ".captioned{display:grid;grid-template-columns:repeat(auto-fill,minmax(230px,1fr));gap:20px}"
    ".captioned figure{margin:0}.captioned img{width:100%;border-radius:6px}"
    ".captioned figcaption b{display:block;margin:.3em 0}"
    ".captioned ul{margin:.2em 0;padding-left:1.1em}"
    ".strips figure{margin:0 0 1.4em}.strips img{max-width:100%}"
)


def write_caption_report(
    path: Path, record: RunRecord, split: CaptionSplit, explained: Sequence[Explanation]
) -> None:
    """Write the report as one self-contained HTML file."""
    tables = CaptionTables.from_tree(record.report.tables)
    history = record.history()
    worst_first = rank_rows(tables.images, "cider")[:NUM_SHOWN]
    best_first = rank_rows(tables.images, "cider", best_first=True)[:NUM_SHOWN]
    parts = [
        _head(record, tables.scores),
        _strips(explained),
        _captions("Typical captions", typical_rows(tables.images, "cider", NUM_SHOWN), split, TYPICAL_NOTE),
        _captions("Worst captions", worst_first, split, WORST_NOTE),
        _captions("Best captions", best_first, split, BEST_NOTE),
        training_section(history, score="bleu4", score_name="validation BLEU-4", note=LOSS_NOTE),
    ]
    write_run_page(path, record, parts, style=STYLE)


def conclude_captions(report: Report) -> Diagnosis:
    """Return the scores in a sentence, and what is the matter with the captions."""
    tables = CaptionTables.from_tree(report.tables)
    pairs = [(image.caption, image.references[0]) for image in tables.images]
    bleu, cut_off = tables.scores.bleu[3], report.scores.get("cut_off", 0.0)
    problems = text_problems(100 * bleu, pairs, cut_off, name="captions")
    result = f"BLEU-4 {bleu:.3f} and CIDEr {tables.scores.cider:.3f} on {number_of(len(pairs), 'image')}."
    return Diagnosis(result, problems)


def _head(record: RunRecord, scores: CaptionScores) -> str:
    interval = "of 1"
    if scores.bleu4_lower is not None and scores.bleu4_upper is not None:
        interval = f"95 % interval {scores.bleu4_lower:.3f} to {scores.bleu4_upper:.3f}"
    entries = [
        (f"{scores.bleu[3]:.3f}", "BLEU-4", interval),
        *((f"{scores.bleu[order]:.3f}", f"BLEU-{order + 1}", "of 1") for order in range(3)),
        (f"{scores.cider:.3f}", "CIDEr", "CIDEr-D; above 1 is rare"),
        (f"{scores.rouge_l:.3f}", "ROUGE-L", "F1 with the nearest reference"),
        *generation_tiles(
            record.report.scores,
            scores.length_ratio,
            token="token",
            reference="nearest reference",
            texts="captions",
        ),
    ]
    signed = f'<p class="signature"><code>{escape(scores.signature)}</code></p>'
    return headline(record, entries) + signed


def _strips(explained: Sequence[Explanation]) -> str:
    if not explained:
        return ""
    figures = "".join(
        f'<figure><img src="{picture_uri(each.still(), longest=STRIP_PX)}" '
        f'alt="what each word was read from in {escape(each.name)}">'
        f"<figcaption>{escape(each.title)}</figcaption></figure>"
        for each in explained
    )
    return section("What it looks at while it writes", f'<div class="strips">{figures}</div>', STRIP_NOTE)


def _captions(title: str, images: Sequence[CaptionedImage], split: CaptionSplit, note: str) -> str:
    figures = []
    for image in images:
        name = split.names[image.index]
        try:
            picture = read_image(split.images[image.index], at_least=(PICTURE_PX, PICTURE_PX), name=name)
        except DataError:  # the file was readable during scoring
            continue
        references = "".join(f"<li>{escape(text)}</li>" for text in image.references)
        figures.append(
            f'<figure><img src="{picture_uri(picture, longest=PICTURE_PX)}" alt="{escape(name)}">'
            f"<figcaption><b>{escape(image.caption or '(nothing)')}</b>"
            f'<span class="soft small">CIDEr {image.cider:.2f}, {escape(name)}</span>'
            f'<details><summary class="small">{len(image.references)} by people</summary>'
            f"<ul class='small'>{references}</ul></details></figcaption></figure>"
        )
    return section(title, f'<div class="captioned">{"".join(figures)}</div>', note) if figures else ""
