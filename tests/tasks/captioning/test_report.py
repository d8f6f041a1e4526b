"""The page of a captioning run: scores with their interval, captions with what people wrote, strips."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from making.caption_folders import draw_square
from making.explanations import of_caption
from vitrail.report.sections import RunRecord
from vitrail.tasks.captioning.dataset import CaptionSplit
from vitrail.tasks.captioning.report import write_caption_report
from vitrail.train.evaluate import Report

pytest.importorskip("sacrebleu", reason="needs the extra captions")
pytest.importorskip("rouge_score", reason="needs the extra captions")


def test_the_page_shows_scores_captions_and_strips(tmp_path: Path) -> None:
    from vitrail.tasks.captioning.scores import caption_tables, headline_scores

    captions = ["a red square", "a <b> square", "", "a blue box"]
    references = [draw_square(number)[1] for number in range(4)]
    tables = caption_tables(captions, references, indices=range(4))
    scores = headline_scores(tables.scores) | {"nll": 1.5, "cut_off": 0.25}
    for number in range(3):  # the fourth is not there any more
        draw_square(number)[0].save(tmp_path / f"{number}.png")
    record = RunRecord(
        title="captioner on squares",
        report=Report(signature={"data": "squares@1"}, scores=scores, tables=tables.model_dump(mode="json")),
        command="vitrail train squares",
    )
    names = [f"{number}.png" for number in range(4)]
    split = CaptionSplit([tmp_path / name for name in names], references, names)
    explained = [replace(of_caption("0.png"), title="a <i>red</i> square")]
    write_caption_report(tmp_path / "report.html", record, split, explained)
    page = (tmp_path / "report.html").read_text()
    assert f"<b>{tables.scores.cider:.3f}</b>" in page
    assert "95 % interval" in page
    assert "25.0%" in page
    assert "a &lt;b&gt; square" in page
    assert "a &lt;i&gt;red&lt;/i&gt; square" in page
    assert "(nothing)" in page
    assert "A blue square on the left ." in page
    assert "3 by people" in page
    assert page.count("<img") == 1 + 3 * 3
