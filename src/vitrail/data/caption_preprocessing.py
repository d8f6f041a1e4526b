"""Prepare images and captions for a captioner; stored with every model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from vitrail.core.config import Config
from vitrail.data.preprocessing import Preprocessing
from vitrail.data.text.words import caption_words


class CaptionPreprocessing(Config):
    """How every image and every caption is prepared."""

    task: Literal["captioning"] = "captioning"
    """What is prepared, which tells these settings from those for images with classes."""
    images: Preprocessing
    """How every image is brought to the encoder's input."""
    plain_words: bool = True
    """Whether captions become lower-case words without punctuation; otherwise they stay as they are."""

    def prepare(self, texts: Sequence[str]) -> list[str]:
        """Prepare captions for the vocabulary: words between single spaces."""
        if self.plain_words:
            return [" ".join(caption_words(text)) for text in texts]
        return [" ".join(text.split()) for text in texts]
