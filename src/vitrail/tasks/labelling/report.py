"""The HTML report of a run that labels texts: scores, errors, examples of attention."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from vitrail.interpret.viewer.explanation import Explanation
from vitrail.interpret.viewer.picture import alignment_svg, panel_of
from vitrail.report.page import section, table
from vitrail.report.sections import RunRecord, write_run_page
from vitrail.tasks.classification.report import class_headline, class_sections
from vitrail.tasks.classification.scores import ClassificationTables, most_confident_errors
from vitrail.tasks.labelling.dataset import TextSplit
from vitrail.tasks.labelling.explanation import OCCLUSION_NOTE
from vitrail.tasks.labelling.objective import MOST_WORDS

NUM_ERRORS = 20
MAX_CHARACTERS = 400  # of a displayed text
LOSS_NOTE = "The training loss is measured with dropout, so it may lie higher."
STYLE = ".words svg{max-width:none}.words figure{overflow-x:auto}"


def write_labelling_report(
    path: Path, record: RunRecord, test: TextSplit, explained: Sequence[Explanation], *, things: str
) -> None:
    """Write the report as one self-contained HTML file."""
    scores, spans = record.report.scores, []
    if "span_f1" in scores:
        remark = f"precision {scores['span_precision']:.1%}, recall {scores['span_recall']:.1%}"
        spans = [(f"{scores['span_f1']:.2%}", "F1 of spans", remark)]
    parts = [
        class_headline(record, things=things, first=spans),
        _errors(record, test, of_words=things == "words"),
        _examples(explained),
        *class_sections(record, things=things, note=LOSS_NOTE),
    ]
    write_run_page(path, record, parts, style=STYLE)


def _errors(record: RunRecord, test: TextSplit, *, of_words: bool) -> str:
    tables, names = ClassificationTables.from_tree(record.report.tables), record.report.class_names
    rows = []
    for row in most_confident_errors(tables, NUM_ERRORS):
        number = tables.indices[row]
        index, place = divmod(number, MOST_WORDS) if of_words else (number, 0)
        text = test.text(index)
        if len(test.parts[index]) > 1:
            text = f"{test.parts[index][place]}, in: {text}"
        shown = text if len(text) <= MAX_CHARACTERS else text[:MAX_CHARACTERS] + " ..."
        confidence = f"{tables.confidence[row]:.1%}"
        rows.append((confidence, names[tables.predicted[row]], names[tables.labels[row]], shown))
    if not rows:
        return ""
    content = table(("confidence", "predicted", "true", "text"), rows, frozenset({0}))
    return section("Most confident errors", content, "Look here for wrong labels first.")


def _examples(explained: Sequence[Explanation]) -> str:
    if not explained:
        return ""
    lost = [each.part("occlusion") for each in explained]
    figures = "".join(
        f"<figure>{alignment_svg(f'words behind label {number}', panel_of(maps))}"
        f"<figcaption>{escape(each.title)}</figcaption></figure>"
        for number, (each, maps) in enumerate(zip(explained, lost, strict=True), start=1)
    )
    note = f"{OCCLUSION_NOTE} vitrail explain RUN --text '...' shows attention as well."
    return section("Which words decide", f'<div class="words">{figures}</div>', note)
