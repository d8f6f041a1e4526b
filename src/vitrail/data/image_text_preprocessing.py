"""Prepare images and texts for a model that compares them; stored with the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from vitrail.data.preprocessing import Preprocessing


class ImageTextPreprocessing(Preprocessing):
    """How every image and every text is prepared."""

    task: Literal["contrastive"] = "contrastive"
    """What is prepared, which tells these settings from those for images alone."""
    lower_case: bool = True
    """Whether letters are made lower-case; published CLIPs do so in their subwords."""

    def prepare(self, texts: Sequence[str]) -> list[str]:
        """Collapse white space to single spaces, none at the ends, and lower-case if configured."""
        prepared = [" ".join(text.split()) for text in texts]
        return [text.lower() for text in prepared] if self.lower_case else prepared
