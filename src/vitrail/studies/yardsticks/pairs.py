"""Translators: BLEU, and the paired bootstrap over sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from vitrail.models.contract import ModelConfig, TranslationModelConfig
from vitrail.models.describe import SENTENCE_LENGTH
from vitrail.tasks.registry import open_run
from vitrail.tasks.resampled_texts import resampled_translations
from vitrail.tasks.translation.scores import NUM_RESAMPLES
from vitrail.tasks.translation.tables import TranslationTables
from vitrail.train.evaluate import Report


class Translations(NamedTuple):
    """What a run made of the test sentences."""

    written: list[str]
    """Its translations."""
    references: list[str]
    """Those of the data."""
    language: str
    """Code of the target language."""
    tokenised: bool
    """Whether the texts came in words."""


class PairYardstick:
    """The yardstick of ``pairs``; its methods are those of ``Yardstick``."""

    kind, score = "translation", "bleu"
    model: type[ModelConfig] = TranslationModelConfig
    least_resamples = NUM_RESAMPLES

    def shared_settings(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return positions that all mixers can have; the rotary ones of small corpora need attention."""
        return {} if "model.name" in settings else {"model.positions": "sinusoidal"}

    def example(self, config: TranslationModelConfig) -> tuple[Tensor, ...]:
        """Return a longer sentence, and its translation up to its last subword."""
        tokens = torch.zeros(1, SENTENCE_LENGTH, dtype=torch.int64)
        return tokens, torch.zeros(1, dtype=torch.int64), tokens.clone()

    def read(self, folder: Path) -> Translations:
        """Return the translations of the report."""
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
        """Return the mean BLEU."""
        return resampled_translations(
            [run.written for run in runs],
            runs[0].references,
            language=runs[0].language,
            tokenised=runs[0].tokenised,
            num_resamples=num_resamples,
        )

    def exact_p(self, first: Translations, second: Translations) -> None:
        """Return None: BLEU is no mean over sentences."""


YARDSTICK = PairYardstick()
