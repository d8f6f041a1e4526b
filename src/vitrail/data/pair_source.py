"""The pairs of a split, and how they are grouped so that little of a batch is padding."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from vitrail.data.pair_preprocessing import PairPreprocessing
from vitrail.data.pairs import PairSplit
from vitrail.data.subwords import PairVocabulary
from vitrail.errors import DataError

# By how much lengths are blurred before sentences are grouped, so that no two epochs have the same batches.
# On Multi30k (en-de, 8,000 byte pairs, 4,096 tokens) 8 % of the planned tokens are padding, with 4 14 %.
LENGTH_NOISE = 2  # subwords


class Pair(NamedTuple):
    """A sentence and its translation, as they were found."""

    source: str
    """The sentence."""
    target: str
    """Its translation."""
    index: int  # type: ignore[assignment]
    """Place in the source."""


class PairSource:
    """The pairs of a split as text, and plans of batches that are counted in subwords.

    Args:
        split: what to load.
        vocabulary: cuts sentences into subwords, to know their lengths.
        preprocessing: what happens to sentences before that.
        max_length: subwords of the longer side, with the one that ends it, of a training pair; longer pairs
            are left out of training plans. None keeps all.
    """

    def __init__(
        self,
        split: PairSplit,
        vocabulary: PairVocabulary,
        preprocessing: PairPreprocessing,
        *,
        max_length: int | None = None,
    ) -> None:
        self.split, self.vocabulary, self.preprocessing = split, vocabulary, preprocessing
        self.max_length = max_length
        self._lengths: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.split)

    def load(self, index: int, generator: torch.Generator | None) -> Pair:
        """Return one pair; how it is cut into subwords, and varied, is the task's work."""
        return Pair(self.split.sources[index], self.split.targets[index], index)

    def prepare(self) -> None:
        """Count the subwords of every sentence; the second call does nothing."""
        if self._lengths is not None:
            return
        sides = (self.split.sources, self.vocabulary.source), (self.split.targets, self.vocabulary.target)
        counts = [
            [len(row) + 1 for row in subwords.encode(self.preprocessing.prepare(texts))]
            for texts, subwords in sides
        ]
        self._lengths = np.array(counts, dtype=np.int64)

    @property
    def lengths(self) -> np.ndarray:
        """Subwords of the sentences (first row) and of their translations, with the one that ends them."""
        self.prepare()
        assert self._lengths is not None
        return self._lengths

    def plan_batches(self, batch_size: int, generator: torch.Generator | None) -> list[list[int]]:
        """Group pairs of like length, so that a batch takes at most ``batch_size`` subwords of either side.

        Its padding counts; a pair that is longer by itself is a batch of its own. Lengths are those without
        subword dropout.

        Args:
            batch_size: number of pairs times the length of the longest sentence.
            generator: for training, draws the groups and their order, and leaves out pairs above
                ``max_length``; without one, every pair is in the plan, the longest sources first.

        Raises:
            DataError: every pair is above ``max_length``.
        """
        if generator is None:
            return _fill(self._by_length(), self.lengths.max(axis=0), batch_size)
        batches = _fill(self._by_noisy_length(generator), self.lengths.max(axis=0), batch_size)
        return [batches[place] for place in torch.randperm(len(batches), generator=generator).tolist()]

    def _by_length(self) -> np.ndarray:
        source, target = self.lengths
        return np.lexsort((-target, -source))  # stable, the last key is the first to count

    def _by_noisy_length(self, generator: torch.Generator) -> np.ndarray:
        chosen = np.arange(len(self.split))
        if self.max_length is not None:
            chosen = np.flatnonzero(self.lengths.max(axis=0) <= self.max_length)
            if len(self.split) and not len(chosen):
                raise DataError(
                    f"every training pair has more than {self.max_length} subwords on one side",
                    expected="pairs of sentences, of which some are shorter",
                    remedy="Raise data.max_length, or divide the texts into sentences",
                )
        noise = LENGTH_NOISE * torch.rand(2, len(chosen), generator=generator).numpy()
        source, target = self.lengths[:, chosen] + noise
        return chosen[np.lexsort((source, target // LENGTH_NOISE))]


def _fill(order: np.ndarray, lengths: np.ndarray, batch_size: int) -> list[list[int]]:
    """Cut an order of pairs into batches, each as long as its tokens allow."""
    batches: list[list[int]] = []
    longest = 0
    for index, length in zip(order.tolist(), lengths[order].tolist(), strict=True):
        longest = max(longest, length)
        if batches and longest * (len(batches[-1]) + 1) <= batch_size:
            batches[-1].append(index)
        else:
            batches.append([index])
            longest = length
    return batches
