"""Selected sentences of an evaluation for the report."""

from __future__ import annotations

from vitrail.tasks.translation.tables import TranslatedSentence, TranslationTables

TYPICAL_WORDS = range(6, 19)  # of a source sentence; shorter ones say little, longer ones fill a page


def worst_sentences(tables: TranslationTables, count: int) -> list[TranslatedSentence]:
    """Return the sentences with the lowest chrF, lowest first."""
    return sorted(tables.sentences, key=lambda sentence: (sentence.chrf, sentence.index))[:count]


def typical_sentences(tables: TranslationTables, count: int) -> list[TranslatedSentence]:
    """Return the sentences of usual length whose chrF is nearest to the median, neither flattering nor
    unkind.

    If there are too few, all lengths count.
    """
    usual = [sentence for sentence in tables.sentences if len(sentence.source.split()) in TYPICAL_WORDS]
    chosen = usual if len(usual) >= count else list(tables.sentences)
    ranked = sorted(chosen, key=lambda sentence: (sentence.chrf, sentence.index))
    start = max(0, (len(ranked) - count) // 2)
    return ranked[start : start + count]
