"""Labelled texts as rows of subwords, batched by similar length to limit padding."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch

from vitrail.core.errors import DataError
from vitrail.data.text.rows import LENGTH_NOISE, bounded_row, fill_batches
from vitrail.data.text.subwords import Subwords
from vitrail.data.text_preprocessing import TextPreprocessing
from vitrail.tasks.labelling.dataset import TextSplit


class EncodedText(NamedTuple):
    """A text as subwords."""

    row: list[int]
    """Begin, subwords, end."""
    starts: list[int]
    """Where each labelled part begins in the row: after the begin, or the first subword of each word."""


class TextSample(NamedTuple):
    """A labelled text."""

    encoded: EncodedText
    labels: np.ndarray
    """Of each part."""
    index: int  # type: ignore[assignment]
    """Index in the split."""


def encode_text(
    parts: Sequence[str], vocabulary: Subwords, preprocessing: TextPreprocessing, *, name: str
) -> EncodedText:
    """Cut a text, or its words one by one, into subwords; a longer text alone is cut off.

    A word is labelled at its first subword (Devlin et al. 2019, section 5.3).

    Raises:
        DataError: there is no word, or words have more subwords than the model reads.
    """
    most, of_words = preprocessing.max_length, preprocessing.labels == "words"
    pieces = [
        found or [vocabulary.unknown_id] * of_words
        for found in vocabulary.encode(preprocessing.prepare(parts))
    ]
    row = [number for found in pieces for number in found]
    if not row:
        raise DataError(
            f"{name} is a sentence without words", expected="at least one word", remedy="Leave it out"
        )
    if of_words and len(row) > most - 2:
        raise DataError(
            f"{name} has {len(pieces)} words of {len(row)} subwords",
            expected=f"at most {most - 2} subwords, so that every word gets its tag",
            remedy="Divide it into sentences, or train with a larger data.max_length",
        )
    starts = np.cumsum([1, *map(len, pieces[:-1])]).tolist() if of_words else [0]
    return EncodedText(bounded_row(row, vocabulary, most), starts)


class TextSource:
    """The texts of a split as subwords; a ``BatchedSource`` that counts tokens."""

    def __init__(self, split: TextSplit, vocabulary: Subwords, preprocessing: TextPreprocessing) -> None:
        self.split, self.vocabulary, self.preprocessing = split, vocabulary, preprocessing

    def __len__(self) -> int:
        return len(self.split)

    def load(self, index: int, generator: torch.Generator | None) -> TextSample:
        return TextSample(self._encoded[index], self.split.labels[index], index)

    def prepare(self) -> None:
        """Cut every text, once."""
        _ = self._encoded

    def plan_batches(self, batch_size: int, generator: torch.Generator | None) -> list[list[int]]:
        """Group texts of similar length into batches of at most ``batch_size`` tokens with padding."""
        lengths = np.array([len(text.row) for text in self._encoded], dtype=np.int64)
        if generator is None:
            return fill_batches(np.argsort(-lengths, kind="stable"), lengths, batch_size)
        noisy = lengths + LENGTH_NOISE * torch.rand(2, len(lengths), generator=generator).numpy()
        batches = fill_batches(np.lexsort((noisy[1], noisy[0] // LENGTH_NOISE)), lengths, batch_size)
        return [batches[place] for place in torch.randperm(len(batches), generator=generator).tolist()]

    @cached_property
    def _encoded(self) -> list[EncodedText]:
        named = zip(self.split.parts, self.split.names, strict=True)
        return [encode_text(parts, self.vocabulary, self.preprocessing, name=name) for parts, name in named]
