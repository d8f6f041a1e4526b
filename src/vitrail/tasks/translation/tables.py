"""Report tables of a translator: scores, BLEU by length, every sentence."""

from __future__ import annotations

from collections.abc import Sequence

from vitrail.core.config import Config
from vitrail.tasks.translation.scores import (
    CorpusScores,
    bleu_metric,
    check_counts,
    corpus_scores,
    percent,
    sentence_chrf,
)

LENGTH_BOUNDS = (5, 10, 15, 20, 25, 30, 40, 50, 60)  # words of a source sentence


class LengthBucket(Config):
    """The sentences of a range of source lengths."""

    shortest: int
    """Minimum source words, inclusive."""
    longest: int | None
    """Maximum source words, inclusive; null for the open last bucket."""
    count: int
    """Number of sentences."""
    bleu: float
    """BLEU of these sentences alone."""


class TranslatedSentence(Config):
    """One sentence with reference and hypothesis."""

    index: int
    """Index in its source."""
    source: str
    """Source sentence."""
    reference: str
    """Reference translation."""
    hypothesis: str
    """Generated translation."""
    chrf: float
    """chrF2 of this sentence, from 0 to 100; BLEU is not a sentence-level score."""


class TranslationTables(Config):
    """Everything behind the headline scores of a translator."""

    scores: CorpusScores
    """Scores of all sentences."""
    buckets: tuple[LengthBucket, ...]
    """BLEU by source length, ascending; empty buckets are left out."""
    sentences: tuple[TranslatedSentence, ...]
    """Every sentence, in the given order."""


def bleu_by_length(
    sources: Sequence[str],
    hypotheses: Sequence[str],
    references: Sequence[str],
    *,
    language: str,
    tokenised: bool = False,
    bounds: Sequence[int] = LENGTH_BOUNDS,
) -> tuple[LengthBucket, ...]:
    """Score sentences grouped by source length, as in Bahdanau et al. 2015, figure 2.

    Args:
        sources: their words are separated by spaces.
        hypotheses: this and the following as in ``corpus_scores``.
        bounds: maximum words of each bucket but the last, ascending.

    Raises:
        ConfigError: sacrebleu is not installed.
        DataError: there is no sentence, or the three lists differ in length.
    """
    check_counts(sources=sources, hypotheses=hypotheses, references=references)
    metric = bleu_metric(language, tokenised, force=True)
    lengths = [len(source.split()) for source in sources]
    buckets = []
    for shortest, longest in zip([0, *(bound + 1 for bound in bounds)], [*bounds, None], strict=True):
        chosen = [
            row
            for row, length in enumerate(lengths)
            if shortest <= length and (longest is None or length <= longest)
        ]
        if chosen:
            score = metric.corpus_score(
                [hypotheses[row] for row in chosen], [[references[row] for row in chosen]]
            )
            bucket = LengthBucket(shortest=shortest, longest=longest, count=len(chosen), bleu=percent(score))
            buckets.append(bucket)
    return tuple(buckets)


def translation_tables(
    sources: Sequence[str],
    hypotheses: Sequence[str],
    references: Sequence[str],
    *,
    indices: Sequence[int] | None = None,
    language: str,
    tokenised: bool = False,
    with_tokenised_bleu: bool = False,
) -> TranslationTables:
    """Collect everything that a report says about a translator; arguments as in ``corpus_scores``.

    Args:
        indices: index of each sentence in its source; by default consecutive.

    Raises:
        ConfigError: sacrebleu, or sacremoses where it is needed, is not installed.
        DataError: there is no sentence, or the lists differ in length.
    """
    indices = range(len(sources)) if indices is None else indices
    check_counts(sources=sources, hypotheses=hypotheses, references=references, indices=indices)
    scores = corpus_scores(
        hypotheses,
        references,
        language=language,
        tokenised=tokenised,
        with_tokenised_bleu=with_tokenised_bleu,
    )
    by_sentence = sentence_chrf(hypotheses, references)
    rows = zip(indices, sources, references, hypotheses, by_sentence, strict=True)
    return TranslationTables(
        scores=scores,
        buckets=bleu_by_length(sources, hypotheses, references, language=language, tokenised=tokenised),
        sentences=tuple(
            TranslatedSentence(
                index=index, source=source, reference=reference, hypothesis=hypothesis, chrf=round(chrf, 4)
            )
            for index, source, reference, hypothesis, chrf in rows
        ),
    )
