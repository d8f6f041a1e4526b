"""How translators, captioners, CLIPs and labellers prepare texts; stored with every model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from vitrail.core.config import Config
from vitrail.data.preprocessing import Preprocessing
from vitrail.data.text.words import caption_words

Labels = Literal["sentence", "words"]
"""What has a label: each sentence (many to one), or each of its words (many to many in step)."""


class PairPreprocessing(Config):
    """How every sentence of both languages is prepared.

    Letters are not brought to one Unicode form: on Multi30k (en, de, fr, cs; 124,056 sentences) none would
    change, and outputs are compared with texts that nobody normalised.
    """

    task: Literal["translation"] = "translation"
    """What is prepared, which tells these settings from those for images."""
    languages: tuple[str, str]
    """Codes of the source and the target language."""
    tokenised: bool = False
    """Whether the text is cut into words by spaces already, and what comes out is so, too."""
    lower_case: bool = False
    """Whether upper-case letters are made lower-case."""

    def prepare(self, texts: Sequence[str]) -> list[str]:
        return _tidy(texts, lower_case=self.lower_case)

    def lowered(self, texts: Sequence[str]) -> list[str]:
        """Lower-case if configured, and nothing else: what outputs can be compared with."""
        return [text.lower() for text in texts] if self.lower_case else list(texts)


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
        return [" ".join(caption_words(text)) for text in texts] if self.plain_words else _tidy(texts)


class ImageTextPreprocessing(Preprocessing):
    """How every image and every text is prepared."""

    task: Literal["contrastive"] = "contrastive"
    """What is prepared, which tells these settings from those for images alone."""
    lower_case: bool = True
    """Whether letters are made lower-case; published CLIPs do so in their subwords."""

    def prepare(self, texts: Sequence[str]) -> list[str]:
        return _tidy(texts, lower_case=self.lower_case)


class TextPreprocessing(Config):
    """How every text is prepared that gets a label, or whose words do."""

    task: Literal["labelling"] = "labelling"
    """What is prepared, which tells these settings from those for images."""
    labels: Labels = "sentence"
    """What has a label: each sentence, or each of its words."""
    lower_case: bool = True
    """Whether letters are made lower-case; subwords of published weights have their own rule."""
    max_length: int = 256
    """Maximum subwords of a text, begin and end included."""

    def prepare(self, texts: Sequence[str]) -> list[str]:
        return _tidy(texts, lower_case=self.lower_case)


def _tidy(texts: Sequence[str], *, lower_case: bool = False) -> list[str]:
    """Collapse white space to single spaces, none at the ends, and lower-case if configured."""
    prepared = [" ".join(text.split()) for text in texts]
    return [text.lower() for text in prepared] if lower_case else prepared
