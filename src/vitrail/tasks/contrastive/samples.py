"""Images with a random caption for training, and with all captions for evaluation."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import UInt8
from torch import Tensor

from vitrail.data.settings import AugmentSettings
from vitrail.data.source import ImageSource
from vitrail.data.text.rows import bounded_row
from vitrail.data.text.subwords import Subwords
from vitrail.data.text_preprocessing import ImageTextPreprocessing
from vitrail.tasks.captioning.dataset import CaptionSplit


class ImageTextSample(NamedTuple):
    """One image with texts."""

    image: UInt8[Tensor, "3 height width"]
    rows: tuple[list[int], ...]
    """Subwords of each text between begin and end."""
    index: int  # type: ignore[assignment]
    """Index of the image in its source."""


class ImageTextSource:
    """Samples of captioned images; each epoch draws another caption of an image.

    Captions that are too long are truncated, as in Radford et al. 2021.

    Args:
        augment: only ``min_crop_area`` is used here.
    """

    def __init__(
        self,
        split: CaptionSplit,
        subwords: Subwords,
        preprocessing: ImageTextPreprocessing,
        augment: AugmentSettings | None = None,
        *,
        max_length: int,
        cache: bool = False,
    ) -> None:
        self.split = split
        self._images = ImageSource(split.unlabelled, preprocessing, augment, cache=cache)
        texts = [text for captions in split.captions for text in captions]
        rows = iter(subwords.encode(preprocessing.prepare(texts)))
        self._rows = [
            [bounded_row(next(rows), subwords, max_length) for _ in captions] for captions in split.captions
        ]

    def __len__(self) -> int:
        return len(self.split)

    def prepare(self) -> None:
        self._images.prepare()

    def load(self, index: int, generator: torch.Generator | None) -> ImageTextSample:
        """Return one image with a random caption, or with all of them without a generator."""
        image = self._images.load(index, generator).image
        rows = self._rows[index]
        if generator is not None:
            rows = [rows[int(torch.randint(len(rows), (), generator=generator))]]
        return ImageTextSample(image, tuple(rows), index)
