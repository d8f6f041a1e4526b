"""Scores of translations: sacrebleu's BLEU and chrF, with signatures, and tokenised BLEU as in published
tables.

Three scores that differ by several points are called BLEU, so each comes with its signature: cased BLEU of
plain text, tokenised by sacrebleu (Post 2018); BLEU of pre-tokenised text; and tokenised BLEU of text that
Moses' scripts lower-case, normalise and tokenise.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float64

from vitrail.core.config import Config
from vitrail.core.errors import DataError, import_optional
from vitrail.data.text.languages import short_code
from vitrail.report.significance import resample_corpus
from vitrail.tasks.contract import ComparisonMetric
from vitrail.tasks.generation import (
    NEEDED,
    NUM_RESAMPLES,
    CorpusScore,
    import_sacrebleu,
    percent,
    score_corpus,
    typical_rows,
)
from vitrail.tasks.registry import open_run
from vitrail.train.evaluate import Report

EXTRA = "translation"  # of vitrail, with the packages that are needed
LENGTH_BOUNDS = (5, 10, 15, 20, 25, 30, 40, 50, 60)  # words of a source sentence
TYPICAL_WORDS = range(6, 19)  # of a source sentence; shorter ones say little, longer ones fill a page
FALLBACK = "en"  # the fallback of Moses' own tokenizer.perl

_log = logging.getLogger(__name__)


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


class LengthBucket(Config):
    """The sentences of a range of source lengths."""

    shortest: int
    """Minimum source words, inclusive."""
    longest: int | None
    """Maximum source words, inclusive; null for the open last bucket."""
    count: int
    bleu: float
    """BLEU of these sentences alone."""


class TranslatedSentence(Config):
    """One sentence with reference and hypothesis; ``index`` is its position in the scored split."""

    index: int
    source: str
    reference: str
    hypothesis: str
    chrf: float
    """chrF2 of this sentence, from 0 to 100; BLEU is not a sentence-level score."""


class TranslationTables(Config):
    """Everything behind the headline scores of a translator."""

    scores: CorpusScores
    buckets: tuple[LengthBucket, ...]
    """BLEU by source length, ascending; empty buckets are left out."""
    sentences: tuple[TranslatedSentence, ...]


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
        language: target language code, such as ``de``; selects the tokenisation.
        num_resamples: of the bootstrap, as for ``score_corpus``; none during training.

    Raises:
        ConfigError: sacrebleu, or sacremoses where it is needed, is not installed.
        DataError: there is no sentence, or not one hypothesis for each reference.

    Example:
        >>> texts = ["Ein Hund rennt."]
        >>> round(corpus_scores(texts, texts, language="de").bleu.score, 3)
        100.0
    """
    check_counts(hypotheses=hypotheses, references=references)
    found, bleu = score_corpus(bleu_metric(language, tokenised), hypotheses, [references], num_resamples)
    _, chrf = score_corpus(import_sacrebleu(EXTRA).CHRF(), hypotheses, [references], num_resamples)
    form: dict[str, Any] = {"language": language, "tokenised": tokenised, "num_resamples": num_resamples}
    return CorpusScores(
        bleu=bleu,
        chrf=chrf,
        bleu_tokenised=tokenised_bleu(hypotheses, references, **form) if with_tokenised_bleu else None,
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
    metrics = import_sacrebleu(EXTRA)
    metric = metrics.BLEU(lowercase=True, tokenize="none", smooth_method="none", force=True)
    if tokenised:
        return score_corpus(metric, hypotheses, [references], num_resamples)[1]
    words = MosesWords(language)
    texts = [*map(words, hypotheses)], [[*map(words, references)]]
    return score_corpus(metric, *texts, num_resamples, **words.signature)[1]


def sentence_chrf(hypotheses: Sequence[str], references: Sequence[str]) -> list[float]:
    """Return the chrF of each sentence, from 0 to 100; raises as ``corpus_scores``."""
    check_counts(hypotheses=hypotheses, references=references)
    metric = import_sacrebleu(EXTRA).CHRF()
    pairs = zip(hypotheses, references, strict=True)
    return [metric.sentence_score(hypothesis, [reference]).score for hypothesis, reference in pairs]


def headline_scores(scores: CorpusScores) -> dict[str, float]:
    """Return every single-number score, with its interval if there is one."""
    named = {"bleu": scores.bleu, "chrf": scores.chrf, "bleu_tokenised": scores.bleu_tokenised}
    headline: dict[str, float] = {}
    for name, score in named.items():
        if score is not None:
            every = {name: score.score, f"{name}_lower": score.lower, f"{name}_upper": score.upper}
            headline |= {key: value for key, value in every.items() if value is not None}
    return headline | {"length_ratio": scores.length_ratio}


def bleu_metric(language: str, tokenised: bool, *, force: bool = False) -> Any:
    """Return sacrebleu's BLEU metric.

    Args:
        force: suppress sacrebleu's warning about text that looks tokenised.
    """
    metrics = import_sacrebleu(EXTRA)
    if tokenised:
        return metrics.BLEU(tokenize="none", force=True)
    code = short_code(language)
    try:
        return metrics.BLEU(trg_lang=code, force=force)
    except RuntimeError:  # for Japanese and Korean, sacrebleu needs an optional package
        _log.warning("BLEU counts characters: sacrebleu's words need pip install 'sacrebleu[%s]'", code)
        return metrics.BLEU(tokenize="char", force=force)


def check_counts(**columns: Sequence[Any]) -> None:
    """Refuse empty columns and those of different lengths, which sacrebleu would truncate."""
    counts = {name: len(column) for name, column in columns.items()}
    if len(set(counts.values())) > 1 or 0 in counts.values():
        raise DataError(
            "there are " + ", ".join(f"{count} {name}" for name, count in counts.items()),
            expected="one or more sentences, and as many of each",
            remedy="Give every translation with what it is compared with; an empty one is an empty text",
        )


def bleu_by_length(
    sources: Sequence[str],
    hypotheses: Sequence[str],
    references: Sequence[str],
    *,
    language: str,
    tokenised: bool = False,
    bounds: Sequence[int] = LENGTH_BOUNDS,
) -> tuple[LengthBucket, ...]:
    """Score sentences grouped by source length, as in Bahdanau et al. 2015, figure 2."""
    metric = bleu_metric(language, tokenised, force=True)
    rows_of: dict[int, list[int]] = {}
    for row, source in enumerate(sources):
        rows_of.setdefault(bisect_left(bounds, len(source.split())), []).append(row)
    buckets = []
    for bucket, rows in sorted(rows_of.items()):
        score = metric.corpus_score([hypotheses[row] for row in rows], [[references[row] for row in rows]])
        shortest = bounds[bucket - 1] + 1 if bucket else 0
        longest = bounds[bucket] if bucket < len(bounds) else None
        buckets.append(LengthBucket(shortest=shortest, longest=longest, count=len(rows), bleu=percent(score)))
    return tuple(buckets)


def translation_tables(
    sources: Sequence[str],
    hypotheses: Sequence[str],
    references: Sequence[str],
    *,
    indices: Sequence[int],
    language: str,
    tokenised: bool = False,
) -> TranslationTables:
    """Collect everything that a report says about a translator; arguments and errors as ``corpus_scores``."""
    check_counts(sources=sources, hypotheses=hypotheses, references=references, indices=indices)
    scores = corpus_scores(
        hypotheses, references, language=language, tokenised=tokenised, with_tokenised_bleu=True
    )
    by_sentence = sentence_chrf(hypotheses, references)
    rounded = [round(chrf, 4) for chrf in by_sentence]
    rows = zip(indices, sources, references, hypotheses, rounded, strict=True)
    fields = TranslatedSentence.model_fields
    return TranslationTables(
        scores=scores,
        buckets=bleu_by_length(sources, hypotheses, references, language=language, tokenised=tokenised),
        sentences=tuple(TranslatedSentence(**dict(zip(fields, row, strict=True))) for row in rows),
    )


def typical_sentences(tables: TranslationTables, count: int) -> list[TranslatedSentence]:
    """Return sentences of usual length around the median chrF; if there are too few, of any length."""
    usual = [sentence for sentence in tables.sentences if len(sentence.source.split()) in TYPICAL_WORDS]
    return typical_rows(usual if len(usual) >= count else tables.sentences, "chrf", count)


class MosesWords:
    """Lower-case, normalise punctuation and tokenise plain text.

    The same steps produced the files ``*.lc.norm.tok.*`` of Multi30k, on which published systems are trained
    and scored (its ``scripts/task1-tokenize.sh``). The words of all 31,014 sentences of training, validation
    and test of 2016 agree, in all four languages.

    Args:
        language: code such as ``de`` or ``pt_BR``; without rules of its own it gets the English ones, and the
            signature says so.

    Raises:
        ConfigError: sacremoses is not installed.

    Example:
        >>> MosesWords("de")("Ein Hund, 3 Jahre alt, rennt.")
        'ein hund , 3 jahre alt , rennt .'
    """

    signature: dict[str, str]
    """Part of the signature of scores."""

    def __init__(self, language: str) -> None:
        sacremoses = import_optional("sacremoses", NEEDED, "sacremoses", EXTRA)
        code = short_code(language)
        rules = sacremoses.corpus.NonbreakingPrefixes().available_langs.get(code)
        self.signature = {
            "norm": "moses",
            "tok": f"moses-{rules}" if rules else f"moses-{FALLBACK}-for-{code or 'unknown'}",
            "sacremoses": version("sacremoses"),
        }
        self._tokenizer = sacremoses.MosesTokenizer(lang=rules or FALLBACK)
        # The Python port differs from the script in a few quotes unless it is asked to agree.
        self._normalizer = sacremoses.MosesPunctNormalizer(lang=rules or FALLBACK, perl_parity=True)

    def __call__(self, text: str) -> str:
        """Return space-separated words, with special characters escaped as in Moses."""
        # The script sees the line end, which one of its quote rules matches.
        normalised = self._normalizer.normalize(text.lower() + "\n")
        return self._tokenizer.tokenize(normalised, return_str=True)


class Translations(NamedTuple):
    """The translations of a run for the test sentences, and how ``corpus_scores`` reads them."""

    written: list[str]
    references: list[str]
    language: str
    tokenised: bool


class Bleu(ComparisonMetric):
    """BLEU; as a corpus score, it has no exact test."""

    score = "bleu"
    least_resamples = NUM_RESAMPLES
    shared_settings = MappingProxyType({"model.positions": "sinusoidal"})  # rotary ones need attention

    def read(self, folder: Path) -> Translations:
        report = Report.load(folder / "report.json")
        sentences = TranslationTables.from_tree(report.tables).sentences
        written = [sentence.hypothesis for sentence in sentences]
        references = [sentence.reference for sentence in sentences]
        data: Any = open_run(folder).experiment.data
        return Translations(written, references, data.languages[1], data.tokenised)

    def resample(
        self, runs: Sequence[Translations], num_resamples: int
    ) -> Float64[np.ndarray, " {num_resamples}"]:
        """Return the BLEU of some runs on each resample, from 0 to 100."""
        metric = bleu_metric(runs[0].language, runs[0].tokenised, force=True)
        return resample_corpus(metric, [run.written for run in runs], [runs[0].references], num_resamples)


BLEU = Bleu()
