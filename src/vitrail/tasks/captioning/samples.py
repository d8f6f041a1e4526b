"""The samples of a split of captioned images: pixels or features, and captions cut into tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float16, UInt8
from torch import Tensor

from vitrail.data.caption_preprocessing import CaptionPreprocessing
from vitrail.data.dataset import ImageSplit
from vitrail.data.feature_cache import FeatureCache
from vitrail.data.settings import AugmentSettings
from vitrail.data.source import ImageSource, Progress
from vitrail.data.text.subwords import Subwords
from vitrail.tasks.captioning.dataset import CaptionSplit


@dataclass(frozen=True, slots=True)
class CaptionSample:
    """One image with captions."""

    content: UInt8[Tensor, "3 height width"] | Float16[Tensor, "cells dim"]
    """Pixels at the encoder's input size, or what a frozen encoder made of them."""
    rows: list[list[int]]
    """Tokens of each caption, without begin and end; in training some of the captions."""
    captions: tuple[str, ...]
    """Every caption, as it was found."""
    index: int
    """Place in the source."""


class CaptionSource:
    """Load the images of a split with their captions.

    Args:
        split: what to load.
        vocabulary: cuts captions into tokens.
        preprocessing: of images and captions.
        augment: how training images vary; only ``min_crop_area`` is used here, the rest varies whole batches.
        captions_per_image: captions of a training sample, drawn anew each time; 0 takes all.
        max_length: tokens of a training caption with its end; longer ones are left out, but for the shortest
            of an image. None keeps all.
        cache: keep decoded pixels, if they fit.
        features: of the same images, which then take the place of pixels; training images do not vary.
        progress: told about the reading of the cache.
    """

    def __init__(
        self,
        split: CaptionSplit,
        vocabulary: Subwords,
        preprocessing: CaptionPreprocessing,
        augment: AugmentSettings | None = None,
        *,
        captions_per_image: int = 0,
        max_length: int | None = None,
        cache: bool = False,
        features: FeatureCache | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.split, self.vocabulary, self.preprocessing = split, vocabulary, preprocessing
        self.captions_per_image, self.max_length, self.features = captions_per_image, max_length, features
        self.images = image_source(
            split, preprocessing, augment, cache=cache and features is None, progress=progress
        )
        self._rows: list[list[list[int]]] | None = None

    def __len__(self) -> int:
        return len(self.split)

    def prepare(self) -> None:
        """Cut the captions, and read pixels or compute features, if they are kept.

        Raises:
            DataError: as ``FeatureCache.prepare``.
        """
        if self._rows is None:
            texts = [text for captions in self.split.captions for text in captions]
            cut = iter(self.vocabulary.encode(self.preprocessing.prepare(texts)))
            self._rows = [[next(cut) for _ in captions] for captions in self.split.captions]
        if self.features is None:
            self.images.prepare()
        else:
            self.features.prepare()

    def load(self, index: int, generator: torch.Generator | None) -> CaptionSample:
        """Return one image with captions: some of them by the generator, all of them without one.

        Raises:
            DataError: the image cannot be read; the message names it.
        """
        self.prepare()
        assert self._rows is not None
        rows = self._rows[index]
        if generator is not None:
            rows = self._draw(rows, generator)
        content = (
            self.images.load(index, generator).image if self.features is None else self.features.load(index)
        )
        return CaptionSample(content, rows, self.split.captions[index], index)

    def _draw(self, rows: list[list[int]], generator: torch.Generator) -> list[list[int]]:
        """Return some of the captions, none of them too long or empty unless all are."""
        limit = float("inf") if self.max_length is None else self.max_length
        kept = [row for row in rows if row and len(row) + 1 <= limit] or [min(rows, key=len)]
        if not self.captions_per_image or len(kept) <= self.captions_per_image:
            return kept
        order = torch.randperm(len(kept), generator=generator).tolist()
        return [kept[place] for place in order[: self.captions_per_image]]


def image_source(
    split: CaptionSplit,
    preprocessing: CaptionPreprocessing,
    augment: AugmentSettings | None = None,
    *,
    cache: bool = False,
    progress: Progress | None = None,
) -> ImageSource:
    """Return the images of a split alone, as samples without a class."""
    without_class = ImageSplit(split.images, np.zeros(len(split), dtype=np.int64), split.names)
    return ImageSource(without_class, preprocessing.images, augment, cache=cache, progress=progress)
