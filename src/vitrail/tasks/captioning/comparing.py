"""Comparison of captioners: BLEU-4 with a paired bootstrap over images."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64

from vitrail.report.significance import resample_corpus
from vitrail.tasks.captioning.scores import (
    NUM_RESAMPLES,
    CaptionTables,
    caption_bleu,
    plain_captions,
    reference_streams,
)
from vitrail.tasks.contract import ComparisonMetric
from vitrail.train.evaluate import Report


class Captions(NamedTuple):
    """The captions of a run for the test images."""

    written: list[str]
    references: list[tuple[str, ...]]


class Bleu4(ComparisonMetric):
    """BLEU-4; as a corpus score, it has no exact test."""

    score = "bleu4"
    least_resamples = NUM_RESAMPLES

    def read(self, folder: Path) -> Captions:
        images = CaptionTables.from_tree(Report.load(folder / "report.json").tables).images
        return Captions([image.caption for image in images], [image.references for image in images])

    def resample(
        self, runs: Sequence[Captions], num_resamples: int
    ) -> Float64[np.ndarray, " {num_resamples}"]:
        """Return the BLEU-4 of some runs on each resample, from 0 to 1.

        Raises:
            ConfigError: sacrebleu is not installed.
        """
        written = [plain_captions(run.written) for run in runs]
        streams = reference_streams([plain_captions(texts) for texts in runs[0].references])
        return resample_corpus(caption_bleu(4), written, streams, num_resamples) / 100


BLEU4 = Bleu4()
