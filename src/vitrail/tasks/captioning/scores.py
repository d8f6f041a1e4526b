"""Scores of captions with several references: BLEU-1 to 4, ROUGE-L and CIDEr-D, tokenised alike.

All but CIDEr lie between 0 and 1. Words are those of ``caption_words``, without case and punctuation, as in
COCO's evaluation (Chen et al. 2015). CIDEr-D is ours: the only library, pycocoevalcap, is a package of 100 MB
with Java programs in it.
"""

from __future__ import annotations

import math
import operator
import statistics
from collections import Counter
from collections.abc import Sequence
from functools import reduce
from itertools import zip_longest
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from jaxtyping import Float64

from vitrail.core.config import Config
from vitrail.core.errors import DataError, import_optional
from vitrail.data.text.words import caption_words
from vitrail.report.significance import resample_corpus
from vitrail.tasks.contract import ComparisonMetric
from vitrail.tasks.generation import NEEDED, NUM_RESAMPLES, import_sacrebleu, score_corpus
from vitrail.train.evaluate import Report

ORDERS = (1, 2, 3, 4)
ROUGE = "rougeL"
EXTRA = "captions"  # of vitrail, with the packages that are needed
MAX_ORDER = 4  # of CIDEr-D's n-grams; Vedantam et al. 2015, section 4
SIGMA = 6.0  # of the penalty for another length; section 7
SCALE = 10.0  # section 7
SMOOTHING = 0.1  # of the BLEU of one caption

Words = Sequence[str]
Grams = list[Counter[tuple[str, ...]]]
Vector = dict[tuple[str, ...], float]


class CaptionScores(Config):
    """Corpus scores of captions."""

    bleu: tuple[float, float, float, float]
    """BLEU-1 to BLEU-4 without smoothing."""
    bleu4_lower: float | None
    """Ends of the 95 % interval of BLEU-4, by bootstrap over images; null if not computed."""
    bleu4_upper: float | None
    cider: float
    """CIDEr-D; 0 to 10, above 1 is rare."""
    rouge_l: float
    """Mean over the images of ROUGE-L's F1 with the nearest reference."""
    length_ratio: float
    """Words of the captions over words of the references of nearest length."""
    num_images: int
    signature: str
    """What must agree for scores to be comparable."""


class CaptionedImage(Config):
    """One image with generated and reference captions; ``index`` is its position in the scored split."""

    index: int
    caption: str
    references: tuple[str, ...]
    cider: float
    """CIDEr-D of this image, with document frequencies of all scored images."""


class CaptionTables(Config):
    """Everything behind the headline scores of a captioner."""

    scores: CaptionScores
    images: tuple[CaptionedImage, ...]


def caption_scores(
    captions: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    num_resamples: int = NUM_RESAMPLES,
    cider: Sequence[float] | None = None,
) -> CaptionScores:
    """Score one caption per image against all of its references.

    Args:
        num_resamples: of BLEU-4's bootstrap, as for ``score_corpus``.

    Raises:
        ConfigError: sacrebleu or rouge-score is not installed.
        DataError: there is no image, or not a list of references for each.

    >>> scores = caption_scores(["A dog runs fast."], [["a dog runs fast", "the dog runs"]], num_resamples=0)
    >>> round(scores.bleu[3], 6), round(scores.rouge_l, 6)
    (1.0, 1.0)
    """
    cider = cider_of_each(captions, references) if cider is None else cider
    written = plain_captions(captions)
    wanted = [plain_captions(texts) for texts in references]
    streams = reference_streams(wanted)
    bleu = [
        score_corpus(caption_bleu(order), written, streams, num_resamples if order == ORDERS[-1] else 0)
        for order in ORDERS
    ]
    found, last = bleu[-1]
    lower, upper = (None if end is None else end / 100 for end in (last.lower, last.upper))
    return CaptionScores(
        bleu=tuple(each.score / 100 for _, each in bleu),
        bleu4_lower=lower,
        bleu4_upper=upper,
        cider=statistics.fmean(cider),
        rouge_l=statistics.fmean(rouge_of_each(written, wanted)),
        length_ratio=found.ratio,
        num_images=len(written),
        signature=f"words:lower-case,no punctuation|{last.signature}|cider:D,own idf|rougeL:F1,best",
    )


def caption_tables(
    captions: Sequence[str], references: Sequence[Sequence[str]], *, indices: Sequence[int]
) -> CaptionTables:
    """Collect everything that a report says about a captioner; raises as ``caption_scores``."""
    each = cider_of_each(captions, references)
    rows = zip(indices, captions, references, each, strict=True)
    return CaptionTables(
        scores=caption_scores(captions, references, cider=each),
        images=tuple(
            CaptionedImage(index=index, caption=caption, references=tuple(texts), cider=round(cider, 4))
            for index, caption, texts, cider in rows
        ),
    )


def headline_scores(scores: CaptionScores) -> dict[str, float]:
    """Return every single-number score."""
    headline = {f"bleu{order}": value for order, value in zip(ORDERS, scores.bleu, strict=True)}
    if scores.bleu4_lower is not None and scores.bleu4_upper is not None:
        headline |= {"bleu4_lower": scores.bleu4_lower, "bleu4_upper": scores.bleu4_upper}
    return headline | {"cider": scores.cider, "rouge_l": scores.rouge_l, "length_ratio": scores.length_ratio}


def plain_captions(captions: Sequence[str]) -> list[str]:
    """Return the words of each caption, separated by spaces."""
    return [" ".join(caption_words(text)) for text in captions]


def caption_bleu(order: int) -> Any:
    """Return sacrebleu's BLEU of space-separated words up to n-grams of an order, without smoothing."""
    metrics = import_sacrebleu(EXTRA)
    return metrics.BLEU(max_ngram_order=order, tokenize="none", smooth_method="none", force=True)


def reference_streams(references: Sequence[Sequence[str]]) -> list[list[str | None]]:
    """Transpose references to sacrebleu's layout: the first of all images, the second ..."""
    return [[*stream] for stream in zip_longest(*references)]


def rouge_of_each(captions: Sequence[str], references: Sequence[Sequence[str]]) -> list[float]:
    """Return ROUGE-L's F1 of each image with its nearest reference; texts are space-separated words."""
    rouge_scorer = import_optional("rouge_score.rouge_scorer", NEEDED, "rouge-score", EXTRA)
    scorer = rouge_scorer.RougeScorer([ROUGE], tokenizer=SimpleNamespace(tokenize=str.split))
    pairs = zip(captions, references, strict=True)
    return [float(scorer.score_multi(texts, caption)[ROUGE].fmeasure) for caption, texts in pairs]


def cider_of_each(captions: Sequence[str], references: Sequence[Sequence[str]]) -> list[float]:
    """Return the CIDEr-D of each image among all of them."""
    return cider_scores(
        [caption_words(text) for text in captions],
        [[caption_words(text) for text in texts] for texts in references],
    )


def cider_scores(hypotheses: Sequence[Words], references: Sequence[Sequence[Words]]) -> list[float]:
    """Return the CIDEr-D of each image; their mean is the corpus score.

    With ``g(c) = count in c * log(images / images whose references have it)`` for the n-grams of each order:
    the mean over references and orders of ``10 exp(-(difference of lengths)^2 / 72)`` times ``sum min(g(c),
    g(r)) g(r) / (|g(c)| |g(r)|)``. It lies between 0 and 10.

    Document frequencies come from the references, so scores of different data sets, or of subsets, are not
    comparable; the score of a single image is 0.

    Raises:
        DataError: there is no image, not a list of references for each, or one without references.

    Paper: Vedantam et al. 2015, equations 1 to 3 and section 7 (the D version, which COCO's server reports).

    >>> references = [[["a", "dog", "runs", "fast"]], [["two", "cats", "sleep", "here"]]]
    >>> hypotheses = [["a", "dog", "runs", "fast"], ["a", "dog", "runs", "fast"]]
    >>> [round(score, 6) for score in cider_scores(hypotheses, references)]
    [10.0, 0.0]
    """
    if not hypotheses or len(hypotheses) != len(references) or not all(references):
        raise DataError(
            f"there are {len(hypotheses)} captions and {len(references)} lists of references",
            expected="one or more captions, and at least one reference for each",
            remedy="Give every caption with what it is compared with; an empty one has no words",
        )
    cider = CiderD(references)
    return [cider.score(words, texts) for words, texts in zip(hypotheses, references, strict=True)]


class CiderD:
    """CIDEr-D with the document frequencies of some images' references, given as words."""

    def __init__(self, references: Sequence[Sequence[Words]]) -> None:
        self._frequencies: Counter[tuple[str, ...]] = Counter()
        for texts in references:
            self._frequencies.update({gram for words in texts for counts in _count(words) for gram in counts})
        self._log_images = math.log(len(references))

    def score(self, hypothesis: Words, references: Sequence[Words]) -> float:
        """Return the score of one caption of an image with these references; see ``cider_scores``."""
        counted = _count(hypothesis)
        own = [self._weigh(counts) for counts in counted]
        total = 0.0
        for grams in map(_count, references):
            # Lengths are counted in bigrams, as in the published code.
            difference = sum(counted[1].values()) - sum(grams[1].values())
            penalty = math.exp(-(difference**2) / (2 * SIGMA**2))
            for vector, counts in zip(own, grams, strict=True):
                total += penalty * _similarity(vector, self._weigh(counts))
        return SCALE * total / (MAX_ORDER * len(references))

    def _weigh(self, counts: Counter[tuple[str, ...]]) -> Vector:
        """Weight counts by inverse document frequency; an n-gram that no reference has weighs most."""
        return {
            gram: count * (self._log_images - math.log(max(1, self._frequencies[gram])))
            for gram, count in counts.items()
        }


def sentence_bleu(hypothesis: Words, references: Sequence[Words]) -> float:
    """Return the BLEU-4 of one caption, from 0 to 1, with ``SMOOTHING`` added to counts of pairs and more.

    Paper: Papineni et al. 2002; Lin and Och 2004, section 4 (the smoothing, there by 1, which prefers short
    captions).

    >>> sentence_bleu(["a", "dog", "runs", "fast"], [["a", "dog", "runs", "fast"], ["a", "dog"]])
    1.0
    """
    if not hypothesis:
        return 0.0
    total = 0.0
    for order, counts in enumerate(_count(hypothesis)):
        most = reduce(operator.or_, (_count(words)[order] for words in references))
        added = SMOOTHING if order else 0.0
        matches = (counts & most).total() + added
        if not matches:
            return 0.0
        total += math.log(matches / (counts.total() + added)) / MAX_ORDER
    length = len(hypothesis)
    nearest = min((abs(len(words) - length), len(words)) for words in references)[1]
    return math.exp(total + min(0.0, 1 - nearest / length))


def _count(words: Words) -> Grams:
    return [
        Counter(tuple(words[start : start + order]) for start in range(len(words) - order + 1))
        for order in range(1, MAX_ORDER + 1)
    ]


def _similarity(hypothesis: Vector, reference: Vector) -> float:
    norms = math.hypot(*hypothesis.values()) * math.hypot(*reference.values())
    if not norms:
        return 0.0
    shared = (gram for gram in hypothesis if gram in reference)
    return sum(min(hypothesis[gram], reference[gram]) * reference[gram] for gram in shared) / norms


class Bleu4(ComparisonMetric):
    """BLEU-4 with a paired bootstrap over images; as a corpus score, it has no exact test."""

    score = "bleu4"
    least_resamples = NUM_RESAMPLES

    def read(self, folder: Path) -> CaptionTables:
        return CaptionTables.from_tree(Report.load(folder / "report.json").tables)

    def resample(
        self, runs: Sequence[CaptionTables], num_resamples: int
    ) -> Float64[np.ndarray, " {num_resamples}"]:
        """Return the BLEU-4 of some runs on each resample, from 0 to 1."""
        written = [plain_captions([image.caption for image in run.images]) for run in runs]
        streams = reference_streams([plain_captions(image.references) for image in runs[0].images])
        return resample_corpus(caption_bleu(4), written, streams, num_resamples) / 100


BLEU4 = Bleu4()
