"""Comparison of translators: BLEU with a paired bootstrap over sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float64

from vitrail.report.significance import resample_corpus
from vitrail.tasks.contract import ComparisonMetric
from vitrail.tasks.registry import open_run
from vitrail.tasks.translation.scores import NUM_RESAMPLES, bleu_metric
from vitrail.tasks.translation.tables import TranslationTables
from vitrail.train.evaluate import Report


class Translations(NamedTuple):
    """The translations of a run for the test sentences."""

    written: list[str]
    references: list[str]
    language: str
    """Code of the target language."""
    tokenised: bool
    """Whether the texts are tokenised."""


class Bleu(ComparisonMetric):
    """BLEU; as a corpus score, it has no exact test."""

    score = "bleu"
    least_resamples = NUM_RESAMPLES

    def shared_settings(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return positions that all mixers support; the rotary ones of small corpora need attention."""
        return {} if "model.name" in settings else {"model.positions": "sinusoidal"}

    def read(self, folder: Path) -> Translations:
        report = Report.load(folder / "report.json")
        sentences = TranslationTables.from_tree(report.tables).sentences
        data: Any = open_run(folder).experiment.data
        return Translations(
            [sentence.hypothesis for sentence in sentences],
            [sentence.reference for sentence in sentences],
            language=data.languages[1],
            tokenised=data.tokenised,
        )

    def resample(
        self, runs: Sequence[Translations], num_resamples: int
    ) -> Float64[np.ndarray, " {num_resamples}"]:
        """Return the BLEU of some runs on each resample, from 0 to 100.

        Raises:
            ConfigError: sacrebleu is not installed.
        """
        metric = bleu_metric(runs[0].language, runs[0].tokenised, force=True)
        return resample_corpus(metric, [run.written for run in runs], [runs[0].references], num_resamples)


BLEU = Bleu()
