"""Captioners: BLEU-4, and the paired bootstrap over images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from vitrail.models.contract import CaptionModelConfig, ModelConfig
from vitrail.models.describe import CAPTION_LENGTH
from vitrail.tasks.captioning.scores import NUM_RESAMPLES, CaptionTables
from vitrail.tasks.resampled_texts import resampled_captions
from vitrail.train.evaluate import Report


class Captions(NamedTuple):
    """What a run wrote of the test images."""

    written: list[str]
    """Its captions."""
    references: list[tuple[str, ...]]
    """Those of the data, of each image."""


class CaptionYardstick:
    """The yardstick of ``captions``; its methods are those of ``Yardstick``."""

    kind, score = "captioning", "bleu4"
    model: type[ModelConfig] = CaptionModelConfig
    least_resamples = NUM_RESAMPLES

    def shared_settings(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return nothing: captioners are compared as a whole."""
        return {}

    def example(self, config: CaptionModelConfig) -> tuple[Tensor, ...]:
        """Return an image and a longer caption."""
        image = torch.empty(1, config.encoder_config.num_channels, *config.image_size)
        return image, torch.zeros(1, 1, CAPTION_LENGTH, dtype=torch.int64)

    def read(self, folder: Path) -> Captions:
        """Return the captions of the report."""
        images = CaptionTables.from_tree(Report.load(folder / "report.json").tables).images
        return Captions([image.caption for image in images], [image.references for image in images])

    def resample(
        self, runs: Sequence[Captions], num_resamples: int
    ) -> Float64[np.ndarray, " {num_resamples}"]:
        """Return the mean BLEU-4."""
        return resampled_captions(
            [run.written for run in runs], runs[0].references, num_resamples=num_resamples
        )

    def exact_p(self, first: Captions, second: Captions) -> None:
        """Return None: BLEU is no mean over images."""


YARDSTICK = CaptionYardstick()
