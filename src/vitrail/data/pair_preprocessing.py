"""Prepare raw sentences for subword encoding; stored with every model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from vitrail.core.config import Config


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
        """Collapse white space to single spaces, none at the ends, and lower-case if configured."""
        prepared = [" ".join(text.split()) for text in texts]
        return self.lowered(prepared)

    def lowered(self, texts: Sequence[str]) -> list[str]:
        """Lower-case if configured, and nothing else: what outputs can be compared with."""
        return [text.lower() for text in texts] if self.lower_case else list(texts)
