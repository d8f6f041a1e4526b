"""Scores of translations: sacrebleu's BLEU and chrF, with signatures, and tokenised BLEU as in published
tables.

Three scores that differ by several points are called BLEU, so each comes with its signature: cased BLEU of
plain text, tokenised by sacrebleu (Post 2018); BLEU of pre-tokenised text; and tokenised BLEU of text that
Moses' scripts lower-case, normalise and tokenise.
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
MAX_RESAMPLED = 10_000  # sentences; sacrebleu holds all resamples in memory, 0.7 GB for so many

_log = logging.getLogger(__name__)


class CorpusScore(Config):
    """One corpus-level score."""

    score: float
    """From 0 to 100, higher is better."""
    lower: float | None
    """Lower end of the 95 % interval, by bootstrap over sentences; null if not computed."""
    upper: float | None
    """Upper end."""
    signature: str
    """What must agree for scores to be comparable, in the manner of sacreBLEU."""


class CorpusScores(Config):
    """Corpus scores of translations, and the parts of BLEU."""

    bleu: CorpusScore
    """Cased BLEU of plain text, or of pre-tokenised text."""
    chrf: CorpusScore
    """chrF2, the F-score of character n-grams (Popovic 2015)."""
    bleu_tokenised: CorpusScore | None
    """BLEU of lower-cased words, as in published tables of Multi30k; null if not computed."""
    precisions: tuple[float, ...]
    """N-gram precisions of BLEU in percent, for n from 1 to 4."""
    brevity_penalty: float
    """BLEU's factor for a corpus shorter than its reference, at most 1."""
    length_ratio: float
    """Words of the hypotheses over words of the references, as BLEU counts them."""
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
        hypotheses: plain text, or space-separated words.
        references: in the same form.
        language: target language code, such as ``de``; selects the tokenisation.
        tokenised: whether the texts are tokenised already.
        with_tokenised_bleu: whether to compute ``tokenised_bleu`` as well.
        num_resamples: of the bootstrap; 0 computes no intervals (during training), nor are there any above
            ``MAX_RESAMPLED`` sentences.

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

    Plain text is tokenised like Multi30k's own files ``*.lc.norm.tok.*``: lower-cased, punctuation
    normalised, Moses' tokenizer.

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
    """Return the chrF of each sentence, from 0 to 100.

    Raises:
        ConfigError: sacrebleu is not installed.
        DataError: there is no sentence, or not one hypothesis for each reference.
    """
    check_counts(hypotheses=hypotheses, references=references)
    metric = _import_metrics().CHRF()
    pairs = zip(hypotheses, references, strict=True)
    return [metric.sentence_score(hypothesis, [reference]).score for hypothesis, reference in pairs]


def headline_scores(scores: CorpusScores) -> dict[str, float]:
    """Return every single-number score, with its interval if there is one."""
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
    """Return sacrebleu's result, and our record of it."""
    resamples = num_resamples if len(hypotheses) <= MAX_RESAMPLED else 0
    try:
        found = metric.corpus_score(list(hypotheses), [list(references)], n_bootstrap=resamples)
    except TypeError:  # sacrebleu mixes float and float32 where some resamples score 0: no interval
        resamples = 0
        found = metric.corpus_score(list(hypotheses), [list(references)])
    signature = metric.get_signature()
    for key, value in (signed_with or {}).items():
        signature.update(key, value)
    lower, upper = None, None
    if resamples > 1:
        # The interval is public in the printed forms only, and left out for a score of 0.
        shown = json.loads(found.format(width=6, signature=str(signature), is_json=True))
        centre, half = shown.get("confidence_mean", 0.0), shown.get("confidence_var", 0.0)
        lower, upper = max(0.0, centre - half), min(100.0, centre + half)
    record = CorpusScore(score=percent(found), lower=lower, upper=upper, signature=str(signature))
    return found, record


def percent(found: Any) -> float:
    """Return a sacrebleu score from 0 to 100."""
    return min(found.score, 100.0)  # equal texts have 100.00000000000004


def bleu_metric(language: str, tokenised: bool, *, force: bool = False) -> Any:
    """Return sacrebleu's BLEU metric.

    Args:
        force: suppress sacrebleu's warning about text that looks tokenised.

    Raises:
        ConfigError: sacrebleu is not installed.
    """
    metrics = _import_metrics()
    if tokenised:
        return metrics.BLEU(tokenize="none", force=True)
    code = base_language(language)
    try:
        return metrics.BLEU(trg_lang=code, force=force)
    except RuntimeError:  # for Japanese and Korean, sacrebleu needs an optional package
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
    """Refuse empty columns and those of different lengths, which sacrebleu would truncate."""
    counts = {name: len(column) for name, column in columns.items()}
    if len(set(counts.values())) > 1 or 0 in counts.values():
        raise DataError(
            "there are " + ", ".join(f"{count} {name}" for name, count in counts.items()),
            expected="one or more sentences, and as many of each",
            remedy="Give every translation with what it is compared with; an empty one is an empty text",
        )
