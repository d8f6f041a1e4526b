from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from making.explanations import of_text
from vitrail.interpret.viewer.explanation import Explanation
from vitrail.report.sections import RunRecord
from vitrail.tasks.generation import rank_rows
from vitrail.tasks.translation.report import conclude_translations, write_translation_report
from vitrail.tasks.translation.scores import (
    CorpusScore,
    CorpusScores,
    LengthBucket,
    TranslatedSentence,
    TranslationTables,
    typical_sentences,
)
from vitrail.train.evaluate import Report

EVIL = '<script>alert("1")</script>'


def toy_score(score: float, name: str, *, has_interval: bool = True) -> CorpusScore:
    lower, upper = (score - 1.5, score + 1.25) if has_interval else (None, None)
    return CorpusScore(score=score, lower=lower, upper=upper, signature=f"nrefs:1|{name}|version:2")


def toy_tables(num_sentences: int = 30, *, has_words: bool = True) -> TranslationTables:
    sentences = tuple(
        TranslatedSentence(
            index=index,
            source=f"source number {index} with some more words",
            reference=f"reference {index}",
            hypothesis=EVIL if index == 4 else f"hypothesis {index}",
            chrf=float((index * 7) % num_sentences),
        )
        for index in range(num_sentences)
    )
    return TranslationTables(
        scores=CorpusScores(
            bleu=toy_score(31.415, "cased"),
            chrf=toy_score(57.25, "chrF2"),
            bleu_tokenised=toy_score(40.5, "lowercase", has_interval=False) if has_words else None,
            precisions=(60.0, 40.0, 25.0, 15.0),
            brevity_penalty=0.98,
            length_ratio=0.977,
            num_sentences=num_sentences,
        ),
        buckets=(
            LengthBucket(shortest=1, longest=10, count=1234, bleu=35.0),
            LengthBucket(shortest=11, longest=20, count=17, bleu=28.0),
            LengthBucket(shortest=61, longest=None, count=1, bleu=3.0),
        ),
        sentences=sentences,
    )


def toy_inputs(tmp_path: Path, tables: TranslationTables | None = None, **changes: object) -> RunRecord:
    metrics = tmp_path / "metrics.jsonl"
    lines: list[dict[str, object]] = [
        {"step": step, "loss": 2 / step, "rate": 1 / step} for step in range(1, 6)
    ]
    lines += [{"step": step, "scores": {"bleu": 5.0 * step, "nll": 2.0}} for step in (3, 5)]
    metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    settings: dict[str, object] = {
        "title": f"transformer_tiny on {EVIL}",
        "report": Report(
            signature={"data": "multi30k@1a2b", "split": "test"},
            scores={"bleu": 31.415, "nll": 1.5, "cut_off": 0.125},
            tables=(tables or toy_tables()).model_dump(mode="json"),
        ),
        "command": "vitrail train 'a&b/' --budget 10m",
        "choices": [("model", "transformer_tiny", "few pairs")],
        "verdict_lines": [f"{EVIL}: usable"],
        "metrics_path": metrics,
        "environment": {"packages": {"torch": "2.13"}},
        "experiment": {"train": {"steps": 5}},
    }
    return RunRecord(**{**settings, **changes})  # type: ignore[arg-type]


ALIGNMENTS = (of_text("A dog"), of_text(EVIL))


def written(tmp_path: Path, record: RunRecord, alignments: Sequence[Explanation] = ALIGNMENTS) -> str:
    write_translation_report(tmp_path / "report.html", record, alignments)
    return (tmp_path / "report.html").read_text()


def test_the_page_shows_every_part(tmp_path: Path) -> None:
    page = written(tmp_path, toy_inputs(tmp_path))

    for text in (
        "<b>31.41</b>",
        "95 % interval 29.91 to 32.66",
        "<b>57.25</b>",
        "<b>40.50</b>",
        "<b>4.48</b>",  # e to the power of 1.5
        "<b>12.5%</b>",
        "BLEU: nrefs:1|cased|version:2",
        "chrF: nrefs:1|chrF2|version:2",
        "tokenised BLEU: nrefs:1|lowercase|version:2",
        "data:multi30k@1a2b|split:test",
        "Worst translations",
        "Typical translations",
        "What it reads while it writes",
        "decoder layer 2, cross-attention",
        "Quality by length",
        "1,234",
        "61+",
        "validation BLEU",
        "learning rate / peak",
        "few pairs",
        "vitrail train &#x27;a&amp;b/&#x27; --budget 10m",
    ):
        assert text in page, text


def test_the_worst_are_the_lowest_and_the_typical_in_the_middle(tmp_path: Path) -> None:
    page = written(tmp_path, toy_inputs(tmp_path))

    worst = page[page.index("Worst translations") : page.index("Typical translations")]
    typical = page[page.index("Typical translations") : page.index("What it reads")]
    of_worst = [float(text) for text in re.findall(r"<td class=number>([\d.]+)</td>", worst)]
    of_typical = [float(text) for text in re.findall(r"<td class=number>([\d.]+)</td>", typical)]
    assert of_worst == [float(score) for score in range(12)]
    assert of_typical == [float(score) for score in range(9, 21)]


def test_the_page_is_one_file_without_markup_of_sentences_and_always_the_same(tmp_path: Path) -> None:
    inputs = toy_inputs(tmp_path)

    page = written(tmp_path, inputs)

    assert page == written(tmp_path, inputs)
    assert "<script" not in page
    assert page.count("&lt;script&gt;") >= 4
    targets = re.findall(r'(?:src|href)="([^"]*)"', page)
    assert targets
    assert all(target.startswith(("data:image/", "#")) for target in targets)
    names = re.findall(r'\bid="([^"]*)"', page)
    assert names
    assert len(names) == len(set(names))


def test_what_is_not_there_is_left_out(tmp_path: Path) -> None:
    changes = {"choices": (), "verdict_lines": (), "metrics_path": None, "environment": {}}

    page = written(tmp_path, toy_inputs(tmp_path, toy_tables(2, has_words=False), **changes), ())

    for title in ("tokenised BLEU", "What it reads", "Choices", "Training", "Environment", "<h2>Data"):
        assert title not in page


def test_a_very_long_sentence_does_not_fill_the_page(tmp_path: Path) -> None:
    tables = toy_tables(1)
    long = tables.sentences[0].model_copy(update={"hypothesis": "word " * 5000})

    page = written(tmp_path, toy_inputs(tmp_path, tables.model_copy(update={"sentences": (long,)})))

    assert page.count("word word") < 200


def tables_of(*rows: tuple[int, float]) -> TranslationTables:
    """Make tables of sentences with so many words and such a chrF."""
    sentences = tuple(
        TranslatedSentence(index=index, source="w " * words, reference="", hypothesis="", chrf=chrf)
        for index, (words, chrf) in enumerate(rows)
    )
    return toy_tables(0).model_copy(update={"sentences": sentences})


@pytest.mark.parametrize(
    ("rows", "count", "expected"),
    [
        (((9, 10.0), (9, 90.0), (9, 50.0), (2, 49.0), (60, 51.0), (9, 60.0), (9, 40.0)), 3, [6, 2, 5]),
        (((9, 10.0), (2, 30.0), (2, 20.0)), 2, [0, 2]),  # all lengths count where few are usual
        (((9, 10.0), (2, 30.0), (2, 20.0)), 9, [0, 2, 1]),
        (((9, 50.0), (2, 3.0), (9, 0.0), (9, 3.0)), 2, [2, 3]),  # ties keep their order
    ],
)
def test_typical_sentences_are_of_median_quality_and_usual_length(
    rows: tuple[tuple[int, float], ...], count: int, expected: list[int]
) -> None:
    assert [sentence.index for sentence in typical_sentences(tables_of(*rows), count)] == expected
    worst_first = sorted(range(len(rows)), key=lambda index: rows[index][1])
    assert [sentence.index for sentence in rank_rows(tables_of(*rows).sentences, "chrf")] == worst_first


@pytest.mark.parametrize(
    ("bleu", "hypothesis", "cut_off", "problems"),
    [
        (31.415, None, 0.125, ()),
        (
            0.05,
            None,
            0.125,
            ("BLEU is about 0: hardly any phrase of the translations is in their references.",),
        ),
        (31.415, "so", 0.125, ("30 of 30 translations are the same: 'so'.",)),
        (31.415, None, 0.5, ("50% of the translations reach the greatest length without an end.",)),
    ],
)
def test_what_is_the_matter_with_translations_is_said(
    tmp_path: Path, bleu: float, hypothesis: str | None, cut_off: float, problems: tuple[str, ...]
) -> None:
    tables = toy_tables().with_changes({"scores.bleu.score": bleu})
    if hypothesis is not None:
        alike = [each.model_copy(update={"hypothesis": hypothesis}) for each in tables.sentences]
        tables = tables.model_copy(update={"sentences": tuple(alike)})
    report = toy_inputs(tmp_path, tables).report.model_copy(update={"scores": {"cut_off": cut_off}})

    found = conclude_translations(report)

    assert found.problems == problems
    assert found.result.startswith(f"BLEU {bleu:.1f} (")
    assert found.result.endswith("on 30 sentence pairs.")
