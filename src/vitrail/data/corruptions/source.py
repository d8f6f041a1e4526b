"""Samples of a source with one corruption, for measuring what it costs a model."""

from __future__ import annotations

from dataclasses import replace

import torch

from vitrail.data.corruptions.contract import Corruption, corrupt
from vitrail.data.source import ImageSample, ImageSource


class CorruptedSource:
    """Load the images of a source corrupted at a severity of 1 to 5, always in the same way per image."""

    def __init__(self, images: ImageSource, corruption: Corruption, severity: int) -> None:
        self.images, self.corruption, self.severity = images, corruption, severity

    def __len__(self) -> int:
        return len(self.images)

    def prepare(self) -> None:
        self.images.prepare()

    def load(self, index: int, generator: torch.Generator | None) -> ImageSample:
        """Return one corrupted image.

        Raises:
            DataError: the image cannot be read, or scipy is not installed.
        """
        sample = self.images.load(index, generator)
        damaged = corrupt(sample.image, self.corruption, self.severity, seed=sample.index)
        return replace(sample, image=damaged)
