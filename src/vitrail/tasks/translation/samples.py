"""Sentence pairs of a split, batched by similar length to limit padding."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from vitrail.core.errors import DataError
from vitrail.data.stream import seed_of
from vitrail.data.text.rows import LENGTH_NOISE, fill_batches
from vitrail.data.text.subwords import PairVocabulary
from vitrail.data.text_preprocessing import PairPreprocessing
from vitrail.tasks.translation.dataset import PairSplit

NUM_VARIANTS = 2**31  # random segmentations of all sentences; variant 0 is the likeliest one

Rows = list[list[list[int]]]
"""Subwords of all source sentences, and of all target sentences, without begin and end."""


class Pair(NamedTuple):
    """A sentence and its translation."""

    source: str
    """Source sentence, unprocessed."""
    target: str
    """Target sentence, unprocessed."""
    index: int  # type: ignore[assignment]
    """Index in the split."""
    source_row: list[int]
    """Source subwords without begin and end."""
    target_row: list[int]
    """Target subwords without begin and end."""


class PairSource:
    """The pairs of a split as subwords, batched by number of tokens.

    With subword dropout a sample is one random segmentation of a pair. Its index is the pair's index plus the
    number of pairs times the variant, so that planning and loading agree on lengths.

    Args:
        max_length: maximum subwords of the longer side of a training pair, including the end; longer pairs
            are left out of training. None keeps all.
    """

    def __init__(
        self,
        split: PairSplit,
        vocabulary: PairVocabulary,
        preprocessing: PairPreprocessing,
        *,
        max_length: int | None = None,
        subword_dropout: float = 0.0,
    ) -> None:
        self.split, self.vocabulary, self.preprocessing = split, vocabulary, preprocessing
        self.max_length, self.subword_dropout = max_length, subword_dropout
        self._cut: dict[int, Rows] = {}  # the likeliest segmentation, and the variant planned last

    def __len__(self) -> int:
        return len(self.split)

    def load(self, index: int, generator: torch.Generator | None) -> Pair:
        variant, position = divmod(index, len(self.split))
        source, target = self.split.sources[position], self.split.targets[position]
        if variant in self._cut:
            rows = [side[position] for side in self._cut[variant]]
        else:
            rows = self._cut_pair(position, variant)
        return Pair(source, target, position, *rows)

    def prepare(self) -> None:
        """Tokenise every sentence, once."""
        if 0 not in self._cut:
            texts = (self.split.sources, self.split.targets)
            prepared = map(self.preprocessing.prepare, texts)
            self._cut[0] = [
                subwords.encode(side) for subwords, side in zip(self.vocabulary, prepared, strict=True)
            ]

    @property
    def lengths(self) -> np.ndarray:
        """Subwords of source (first row) and target sentences, including the end."""
        self.prepare()
        return self._lengths(0)

    def plan_batches(self, batch_size: int, generator: torch.Generator | None) -> list[list[int]]:
        """Group pairs of similar length into batches of at most ``batch_size`` tokens on either side.

        Padding counts; a longer pair is a batch of its own.

        Args:
            batch_size: number of pairs times the longest length.
            generator: for training: draws segmentations, groups and order, and leaves out pairs above
                ``max_length``; without it, all pairs are planned, longest sources first.

        Raises:
            DataError: every pair is above ``max_length``.
        """
        self.prepare()
        if generator is None:
            source, target = lengths = self._lengths(0)
            by_length = np.lexsort((-target, -source))  # stable; the last key is the primary one
            return fill_batches(by_length, lengths.max(axis=0), batch_size)
        variant = self._draw_variant(generator)
        lengths = self._lengths(variant)
        batches = fill_batches(self._by_noisy_length(lengths, generator), lengths.max(axis=0), batch_size)
        first = variant * len(self.split)
        order = torch.randperm(len(batches), generator=generator).tolist()
        return [[first + index for index in batches[position]] for position in order]

    def _draw_variant(self, generator: torch.Generator) -> int:
        if not self.subword_dropout:
            return 0
        variant = 1 + int(torch.randint(NUM_VARIANTS, (), generator=generator))
        if variant not in self._cut:
            pairs = [self._cut_pair(position, variant) for position in range(len(self.split))]
            self._cut = {0: self._cut[0], variant: [[pair[side] for pair in pairs] for side in (0, 1)]}
        return variant

    def _cut_pair(self, position: int, variant: int) -> list[list[int]]:
        """Return source and target subwords, by the vocabulary's own rule in variant 0."""
        dropout = self.subword_dropout if variant else 0.0
        texts = self.preprocessing.prepare([self.split.sources[position], self.split.targets[position]])
        return [
            subwords.encode_sampled([text], dropout=dropout, seed=seed_of(side, variant, position))[0]
            for side, subwords, text in zip(self.vocabulary._fields, self.vocabulary, texts, strict=True)
        ]

    def _lengths(self, variant: int) -> np.ndarray:
        counts = [[len(row) + 1 for row in rows] for rows in self._cut[variant]]
        return np.array(counts, dtype=np.int64)

    def _by_noisy_length(self, lengths: np.ndarray, generator: torch.Generator) -> np.ndarray:
        chosen = np.arange(len(self.split))
        if self.max_length is not None:
            chosen = np.flatnonzero(lengths.max(axis=0) <= self.max_length)
            if len(self.split) and not len(chosen):
                raise DataError(
                    f"every training pair has more than {self.max_length} subwords on one side",
                    expected="pairs of sentences, of which some are shorter",
                    remedy="Raise data.max_length, or divide the texts into sentences",
                )
        noise = LENGTH_NOISE * torch.rand(2, len(chosen), generator=generator).numpy()
        source, target = lengths[:, chosen] + noise
        return chosen[np.lexsort((source, target // LENGTH_NOISE))]
