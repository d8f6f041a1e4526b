"""BLEU of resampled test sets: what paired tests of translators and captioners are made of.

Koehn 2004, Statistical Significance Tests for Machine Translation Evaluation, section 3. The statistics of a
sentence and the score of their sums are sacrebleu's, and so are the resamples.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float64

from vitrail.report.significance import resample
from vitrail.tasks.captioning.scores import caption_bleu, plain_captions, reference_streams
from vitrail.tasks.translation.scores import bleu_metric


def resampled_translations(
    runs: Sequence[Sequence[str]],
    references: Sequence[str],
    *,
    language: str,
    tokenised: bool,
    num_resamples: int,
) -> Float64[np.ndarray, " {num_resamples}"]:
    """Return the mean BLEU of some runs of a translator on each resample, from 0 to 100.

    Args:
        runs: the translations by each run, of the same sentences.
        references: what was wanted.
        language: code of the target language.
        tokenised: whether both texts came in words.
        num_resamples: how often sentences are drawn.

    Raises:
        ConfigError: sacrebleu is not installed.
    """
    metric = bleu_metric(language, tokenised, force=True)
    return _resample_corpus(metric, runs, [list(references)], num_resamples)


def resampled_captions(
    runs: Sequence[Sequence[str]], references: Sequence[Sequence[str]], *, num_resamples: int
) -> Float64[np.ndarray, " {num_resamples}"]:
    """Return the mean BLEU-4 of some runs of a captioner on each resample, from 0 to 1.

    Args:
        runs: the captions by each run, of the same images.
        references: of each image.
        num_resamples: how often images are drawn.

    Raises:
        ConfigError: sacrebleu is not installed.
    """
    written = [plain_captions(captions) for captions in runs]
    streams = reference_streams([plain_captions(texts) for texts in references])
    return _resample_corpus(caption_bleu(4), written, streams, num_resamples) / 100


def _resample_corpus(
    metric: Any, runs: Sequence[Sequence[str]], streams: Sequence[Sequence[str | None]], num_resamples: int
) -> Float64[np.ndarray, " {num_resamples}"]:
    # These methods are what sacrebleu's own paired tests are built on; it has no public ones for them.
    statistics = [
        np.array(metric._extract_corpus_statistics(list(texts), streams), dtype="float32") for texts in runs
    ]
    scores = np.empty((num_resamples, len(runs)))
    for row, drawn in enumerate(resample(len(runs[0]), num_resamples)):
        for column, each in enumerate(statistics):
            scores[row, column] = metric._compute_score_from_stats(each[drawn].sum(axis=0)).score
    return scores.mean(axis=1)
