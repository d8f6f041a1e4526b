"""Scores of translations: sacrebleu's BLEU and chrF, signed, and the tokenised BLEU of published tables.

Three numbers that differ by several points go by the name of BLEU, so that none is given without its
signature: cased BLEU of plain text, which sacrebleu cuts into words itself (Post 2018); BLEU of text that
came in words; and tokenised BLEU, for which Moses' scripts lower-case, normalise and cut the text first.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from vitrail.core.config import Config
from vitrail.core.errors import ConfigError, DataError
from vitrail.tasks.translation.moses import MosesWords, base_language

NUM_RESAMPLES = 1000  # Koehn 2004, Statistical Significance Tests for Machine Translation, section 3
MAX_RESAMPLED = 10_000  # sentences; sacrebleu holds all resamples at once, 0.7 GB for so many

_log = logging.getLogger(__name__)


class CorpusScore(Config):
    """One score of all sentences together."""

    score: float
    """From 0 to 100, more is better."""
    lower: float | None
    """Lower end of its 95 % interval, by bootstrap over the sentences; null where none was asked for."""
    upper: float | None
    """Upper end of it."""
    signature: str
    """What another score must agree in to be compared, in the manner of sacrebleu."""


class CorpusScores(Config):
    """The scores of a translated corpus, and the parts of its BLEU."""

    bleu: CorpusScore
    """Cased BLEU of plain text; of words, where the text came in words."""
    chrf: CorpusScore
    """chrF2, the F-score of character n-grams (Popovic 2015)."""
    bleu_tokenised: CorpusScore | None
    """BLEU of lower-cased words, as published tables of Multi30k have it; null where none was asked for."""
    precisions: tuple[float, ...]
    """Percentage of the n-grams of BLEU that are in the reference, for n from 1 to 4."""
    brevity_penalty: float
    """The factor below 1 by which BLEU punishes a corpus shorter than its reference."""
    length_ratio: float
    """Words of the hypotheses over words of the references, both as BLEU counts them."""
    num_sentences: int
    """Number of sentences."""


def corpus_scores(
    hypotheses: Sequence[str],
    references: Sequence[str],
    *,
    language: str,
    tokenised: bool = False,
    with_tokenised_bleu: bool = False,
    num_resamples: int = NUM_RESAMPLES,
) -> CorpusScores:
    """Score translations against one reference each.

    Args:
        hypotheses: what the model wrote; plain text, or words between spaces.
        references: what was wanted, in the same form.
        language: code of the target language, such as ``de``; it chooses the rules that make words.
        tokenised: whether both texts came in words, which are then taken as they are.
        with_tokenised_bleu: whether ``tokenised_bleu`` is wanted as well.
        num_resamples: resamples behind the 95 % intervals; 0 gives none, which is fit for the scores
            during training. Above ``MAX_RESAMPLED`` sentences there are none either.

    Raises:
        ConfigError: sacrebleu, or sacremoses where it is needed, is not installed.
        DataError: there is no sentence, or not one hypothesis for each reference.

    Example:
        >>> texts = ["Ein Hund rennt."]
        >>> round(corpus_scores(texts, texts, language="de").bleu.score, 3)
        100.0
    """
    check_counts(hypotheses=hypotheses, references=references)
    bleu, chrf = bleu_metric(language, tokenised), _import_metrics().CHRF()
    found, signed = _score(bleu, hypotheses, references, num_resamples)
    _, signed_chrf = _score(chrf, hypotheses, references, num_resamples)
    words = None
    if with_tokenised_bleu:
        words = tokenised_bleu(
            hypotheses, references, language=language, tokenised=tokenised, num_resamples=num_resamples
        )
    return CorpusScores(
        bleu=signed,
        chrf=signed_chrf,
        bleu_tokenised=words,
        precisions=tuple(map(float, found.precisions)),
        brevity_penalty=found.bp,
        length_ratio=found.ratio,
        num_sentences=len(hypotheses),
    )


def tokenised_bleu(
    hypotheses: Sequence[str],
    references: Sequence[str],
    *,
    language: str,
    tokenised: bool = False,
    num_resamples: int = NUM_RESAMPLES,
) -> CorpusScore:
    """Score lower-cased words without smoothing, as Moses' multi-bleu.perl does.

    Plain text is brought to words first in the way in which Multi30k's own files ``*.lc.norm.tok.*`` were
    made: lower-cased, its punctuation normalised, then cut by Moses' tokenizer.

    Arguments and errors are those of ``corpus_scores``.
    """
    check_counts(hypotheses=hypotheses, references=references)
    metric = _import_metrics().BLEU(lowercase=True, tokenize="none", smooth_method="none", force=True)
    if tokenised:
        return _score(metric, hypotheses, references, num_resamples)[1]
    words = MosesWords(language)
    hypotheses, references = [*map(words, hypotheses)], [*map(words, references)]
    return _score(metric, hypotheses, references, num_resamples, words.signature)[1]


def sentence_chrf(hypotheses: Sequence[str], references: Sequence[str]) -> list[float]:
    """Score each sentence by itself, from 0 to 100.

    Raises:
        ConfigError: sacrebleu is not installed.
        DataError: there is no sentence, or not one hypothesis for each reference.
    """
    check_counts(hypotheses=hypotheses, references=references)
    metric = _import_metrics().CHRF()
    pairs = zip(hypotheses, references, strict=True)
    return [metric.sentence_score(hypothesis, [reference]).score for hypothesis, reference in pairs]


def headline_scores(scores: CorpusScores) -> dict[str, float]:
    """Name every single number, each with the ends of its interval where it has one."""
    named = {"bleu": scores.bleu, "chrf": scores.chrf, "bleu_tokenised": scores.bleu_tokenised}
    headline: dict[str, float] = {}
    for name, score in named.items():
        if score is not None:
            headline[name] = score.score
            if score.lower is not None and score.upper is not None:
                headline |= {f"{name}_lower": score.lower, f"{name}_upper": score.upper}
    return headline | {"length_ratio": scores.length_ratio}


def _score(
    metric: Any,
    hypotheses: Sequence[str],
    references: Sequence[str],
    num_resamples: int,
    signed_with: Mapping[str, str] | None = None,
) -> tuple[Any, CorpusScore]:
    """Return what sacrebleu found, and our record of it."""
    resamples = num_resamples if len(hypotheses) <= MAX_RESAMPLED else 0
    found = metric.corpus_score(list(hypotheses), [list(references)], n_bootstrap=resamples)
    signature = metric.get_signature()
    for key, value in (signed_with or {}).items():
        signature.update(key, value)
    lower, upper = None, None
    if resamples > 1:
        # The interval is public in the printed forms only; of a score of 0 it is left out there.
        shown = json.loads(found.format(width=6, signature=str(signature), is_json=True))
        centre, half = shown.get("confidence_mean", 0.0), shown.get("confidence_var", 0.0)
        lower, upper = max(0.0, centre - half), min(100.0, centre + half)
    record = CorpusScore(score=percent(found), lower=lower, upper=upper, signature=str(signature))
    return found, record


def percent(found: Any) -> float:
    """Return the score of what sacrebleu found, from 0 to 100."""
    return min(found.score, 100.0)  # equal texts have 100.00000000000004


def bleu_metric(language: str, tokenised: bool, *, force: bool = False) -> Any:
    """Return sacrebleu's BLEU of such text.

    Args:
        language: as in ``corpus_scores``.
        tokenised: as in ``corpus_scores``.
        force: whether sacrebleu is not to remark on text that looks cut.

    Raises:
        ConfigError: sacrebleu is not installed.
    """
    metrics = _import_metrics()
    if tokenised:
        return metrics.BLEU(tokenize="none", force=True)
    code = base_language(language)
    try:
        return metrics.BLEU(trg_lang=code, force=force)
    except RuntimeError:  # for Japanese and Korean, sacrebleu needs a package that may be absent
        _log.warning("BLEU counts characters: sacrebleu's words need pip install 'sacrebleu[%s]'", code)
        return metrics.BLEU(tokenize="char", force=force)


def _import_metrics() -> Any:
    try:
        import sacrebleu.metrics
    except ImportError:
        raise ConfigError(
            "scores of translations need the package sacrebleu, which is not installed",
            expected="sacrebleu beside vitrail",
            remedy="Install it with: pip install 'vitrail[translation]'",
        ) from None
    return sacrebleu.metrics


def check_counts(**columns: Sequence[Any]) -> None:
    """Refuse columns of different lengths, which sacrebleu would cut to the shortest, and empty ones."""
    counts = {name: len(column) for name, column in columns.items()}
    if len(set(counts.values())) > 1 or 0 in counts.values():
        raise DataError(
            "there are " + ", ".join(f"{count} {name}" for name, count in counts.items()),
            expected="one or more sentences, and as many of each",
            remedy="Give every translation with what it is compared with; an empty one is an empty text",
        )
