from __future__ import annotations

from vitrail.tasks.generation import rank_rows
from vitrail.tasks.translation.scores import (
    CorpusScore,
    CorpusScores,
    TranslatedSentence,
    TranslationTables,
    typical_sentences,
)


def tables_of(*rows: tuple[int, float]) -> TranslationTables:
    """Make tables of sentences with so many words and such a chrF."""
    score = CorpusScore(score=20.0, lower=None, upper=None, signature="toy")
    scores = CorpusScores(
        bleu=score,
        chrf=score,
        bleu_tokenised=None,
        precisions=(1.0, 1.0, 1.0, 1.0),
        brevity_penalty=1.0,
        length_ratio=1.0,
        num_sentences=len(rows),
    )
    sentences = tuple(
        TranslatedSentence(index=index, source="w " * words, reference="", hypothesis="", chrf=chrf)
        for index, (words, chrf) in enumerate(rows)
    )
    return TranslationTables(scores=scores, buckets=(), sentences=sentences)


def test_the_worst_come_first_and_ties_in_order() -> None:
    tables = tables_of((9, 50.0), (2, 3.0), (9, 0.0), (9, 3.0))

    assert [sentence.index for sentence in rank_rows(tables.sentences, "chrf")[:3]] == [2, 1, 3]


def test_typical_sentences_are_of_median_quality_and_usual_length() -> None:
    tables = tables_of((9, 10.0), (9, 90.0), (9, 50.0), (2, 49.0), (60, 51.0), (9, 60.0), (9, 40.0))

    assert [sentence.index for sentence in typical_sentences(tables, 3)] == [6, 2, 5]


def test_all_lengths_count_where_few_are_usual() -> None:
    tables = tables_of((9, 10.0), (2, 30.0), (2, 20.0))

    assert [sentence.index for sentence in typical_sentences(tables, 2)] == [0, 2]
    assert len(typical_sentences(tables, 9)) == 3
