"""The HTML report of a translation run: scores, translations and alignments."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from vitrail.data.findings import number_of
from vitrail.interpret.viewer.explanation import Explanation
from vitrail.interpret.viewer.picture import alignment_svg, panel_of
from vitrail.report.page import section, table
from vitrail.report.plots import bar_plot
from vitrail.report.sections import RunRecord, headline, plots_in_row, training_section, write_run_page
from vitrail.tasks.contract import Diagnosis
from vitrail.tasks.generation import CorpusScore, generation_tiles, rank_rows, text_problems
from vitrail.tasks.translation.scores import (
    LengthBucket,
    TranslatedSentence,
    TranslationTables,
    typical_sentences,
)
from vitrail.train.evaluate import Report

NUM_WORST, NUM_TYPICAL = 12, 12
MAX_CHARACTERS = 600  # of a displayed sentence
LOSS_NOTE = "The training loss is measured with dropout and smoothed labels, so it may lie higher."
WORST_NOTE = (
    "The sentences with the lowest chrF, which counts characters in common with the reference. Look here for "
    "wrong pairs first; a free translation may be right and low."
)
TYPICAL_NOTE = "Sentences of usual length around the median chrF: typical, not flattering."
STYLE = (
    ".signature+.signature{margin-top:.35em}"
    ".alignments{display:flex;flex-wrap:wrap;gap:22px 30px;align-items:flex-start}"
    ".alignments figure{max-width:100%;overflow-x:auto}.alignments figcaption{max-width:34em}"
    ".alignments svg{max-width:none}"
    ".translations td{min-width:9em;overflow-wrap:anywhere}.translations td.number{min-width:3.5em}"
)


def write_translation_report(path: Path, record: RunRecord, alignments: Sequence[Explanation] = ()) -> None:
    """Write the report as one self-contained HTML file."""
    tables = TranslationTables.from_tree(record.report.tables)
    history = record.history()
    parts = [
        _head(record, tables),
        _translations("Worst translations", rank_rows(tables.sentences, "chrf")[:NUM_WORST], WORST_NOTE),
        _translations("Typical translations", typical_sentences(tables, NUM_TYPICAL), TYPICAL_NOTE),
        _alignments(alignments),
        _by_length(tables.buckets),
        training_section(history, score="bleu", score_name="validation BLEU", note=LOSS_NOTE),
    ]
    write_run_page(path, record, parts, style=STYLE)


def conclude_translations(report: Report) -> Diagnosis:
    """Return the score in a sentence, and what is the matter with the translations."""
    tables = TranslationTables.from_tree(report.tables)
    pairs = [(sentence.hypothesis, sentence.reference) for sentence in tables.sentences]
    bleu, cut_off = tables.scores.bleu, report.scores.get("cut_off", 0.0)
    problems = text_problems(bleu.score, pairs, cut_off, name="translations")
    return Diagnosis(
        f"BLEU {bleu.score:.1f} ({_interval(bleu)}) on {number_of(len(pairs), 'sentence pair')}.", problems
    )


def _head(record: RunRecord, tables: TranslationTables) -> str:
    scores = tables.scores
    computed = {"BLEU": scores.bleu, "tokenised BLEU": scores.bleu_tokenised, "chrF": scores.chrf}
    signed = {name: score for name, score in computed.items() if score is not None}
    entries = [(f"{score.score:.2f}", name, _interval(score)) for name, score in signed.items()]
    entries += generation_tiles(
        record.report.scores,
        scores.length_ratio,
        token="subword",
        reference="reference",
        texts="translations",
    )
    signatures = "".join(
        f'<p class="signature"><code>{escape(f"{name}: {score.signature}")}</code></p>'
        for name, score in signed.items()
    )
    return headline(record, entries) + signatures


def _interval(score: CorpusScore) -> str:
    if score.lower is None or score.upper is None:
        return "of 100"
    return f"95 % interval {score.lower:.2f} to {score.upper:.2f}"


def _translations(title: str, sentences: Sequence[TranslatedSentence], note: str) -> str:
    if not sentences:
        return ""
    rows = [
        (
            f"{sentence.chrf:.1f}",
            *map(_shorten, (sentence.source, sentence.reference, sentence.hypothesis or "(nothing)")),
        )
        for sentence in sentences
    ]
    content = table(("chrF", "source", "reference", "translation"), rows, frozenset({0}))
    return section(title, f'<div class="translations">{content}</div>', note)


def _shorten(text: str) -> str:
    return text if len(text) <= MAX_CHARACTERS else text[:MAX_CHARACTERS] + " ..."


def _alignments(alignments: Sequence[Explanation]) -> str:
    if not alignments:
        return ""
    figures = "".join(
        f"<figure>{alignment_svg(f'alignment of sentence {number}', panel_of(text.maps[0]))}"
        f"<figcaption>{escape(text.name)}<br><b>{escape(text.title)}</b><br>"
        f"{escape(text.maps[0].title_of())}</figcaption></figure>"
        for number, text in enumerate(alignments, start=1)
    )
    note = (
        "Rows are the words that were written, columns those that were read; the mean over heads, the "
        "shade is the root of the weight. vitrail explain RUN --text '...' shows every layer and head."
    )
    return section("What it reads while it writes", f'<div class="alignments">{figures}</div>', note)


def _by_length(buckets: Sequence[LengthBucket]) -> str:
    if len(buckets) < 2:
        return ""
    names = [
        f"{bucket.shortest}+" if bucket.longest is None else f"{bucket.shortest}-{bucket.longest}"
        for bucket in buckets
    ]
    plot = bar_plot(
        "BLEU by length of the source",
        dict(zip(names, [bucket.bleu for bucket in buckets], strict=True)),
        counts=[bucket.count for bucket in buckets],
        x_label="words of the source",
        y_label="BLEU",
    )
    note = "Each group is scored by itself; the numbers on the bars count its sentences, faint ones hold few."
    return section("Quality by length", plots_in_row([plot]), note)
