"""Inspect every pair of a data set once: lengths, scripts, unusable pairs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from vitrail.data.text.scripts import SCRIPTS, SPACE, UNDECODABLE, Characters, count_characters
from vitrail.tasks.translation.dataset import PairDataset, PairSplit

MAX_WORDS = 1000  # a longer side is a document, or lines that lost their ends
MAX_CHARACTERS = 6000  # equivalent in English; for languages without spaces


class Side(NamedTuple):
    """One side of one split."""

    split: str
    language: str
    """Name of the language."""
    texts: Sequence[str]
    names: Sequence[str]
    """Name of each pair."""
    characters: Characters
    """Of each sentence."""
    is_usable: np.ndarray
    """Whether each pair is usable, on both sides."""

    def items(self, chosen: np.ndarray) -> list[str]:
        """Name the masked sentences by pair and language."""
        return [f"{self.names[index]} ({self.language})" for index in np.flatnonzero(chosen).tolist()]


class Faults(NamedTuple):
    """Masks of the unusable pairs of one split, for both sides: ``2 pairs``."""

    empty: np.ndarray
    undecodable: np.ndarray
    too_long: np.ndarray


@dataclass(frozen=True)
class ExaminedPairs:
    """A data set with the inspection of each pair."""

    dataset: PairDataset
    characters: dict[str, tuple[Characters, Characters]]
    """Source and target statistics of each split."""

    @classmethod
    def of(cls, dataset: PairDataset) -> ExaminedPairs:
        return cls(
            dataset,
            {
                name: (count_characters(split.sources), count_characters(split.targets))
                for name, split in dataset.splits.items()
            },
        )

    @property
    def num_pairs(self) -> int:
        """Over all splits."""
        return sum(len(split) for split in self.dataset.splits.values())

    @cached_property
    def faults(self) -> dict[str, Faults]:
        """Faults of each split."""
        return {name: _find_faults(sides) for name, sides in self.characters.items()}

    @cached_property
    def is_usable(self) -> dict[str, np.ndarray]:
        """Mask of the usable pairs of each split."""
        return {
            name: ~np.logical_or.reduce(np.stack(found)).any(axis=0) for name, found in self.faults.items()
        }

    @cached_property
    def unusable(self) -> frozenset[str]:
        """Names of the unusable pairs."""
        return frozenset(
            split.names[index]
            for name, split in self.dataset.splits.items()
            for index in np.flatnonzero(~self.is_usable[name])
        )

    @cached_property
    def sides(self) -> tuple[Side, ...]:
        """Both sides of every split."""
        return tuple(
            Side(name, language, texts, split.names, characters, self.is_usable[name])
            for name, split in self.dataset.splits.items()
            for language, texts, characters in zip(
                self.dataset.languages, (split.sources, split.targets), self.characters[name], strict=True
            )
        )

    @cached_property
    def script_of(self) -> dict[str, str]:
        """Predominant script of each language, if it has letters."""
        found = {}
        for language in self.dataset.languages:
            totals = sum(
                side.characters.letters[side.is_usable].sum(axis=0)
                for side in self.sides
                if side.language == language
            )
            if np.any(totals):
                found[language] = SCRIPTS[int(np.argmax(totals))]
        return found

    @property
    def counts(self) -> dict[str, Any]:
        """The counts of a verdict."""
        return {
            "pairs": {name: len(split) for name, split in self.dataset.splits.items()},
            "languages": list(self.dataset.languages),
            "format": self.dataset.format,
            "scripts": dict(self.script_of),
            "words": {language: self._words(language) for language in self.dataset.languages},
        }

    def rows(self) -> Iterator[tuple[str, PairSplit, list[int]]]:
        """Yield each split with its name and the indices of usable pairs."""
        for name, split in self.dataset.splits.items():
            yield name, split, np.flatnonzero(self.is_usable[name]).tolist()

    def _words(self, language: str) -> dict[str, float]:
        used = [side.characters.words[side.is_usable] for side in self.sides if side.language == language]
        words = np.concatenate(used)
        if not len(words):
            return {}
        return {"mean": round(float(words.mean()), 2), "longest": int(words.max())}


def _find_faults(sides: tuple[Characters, Characters]) -> Faults:
    def of_both(mask: Any) -> np.ndarray:
        return np.stack([mask(side) for side in sides])

    return Faults(
        empty=of_both(lambda side: side.lengths == side.classes[:, SPACE]),
        undecodable=of_both(lambda side: side.classes[:, UNDECODABLE] > 0),
        too_long=of_both(lambda side: (side.words > MAX_WORDS) | (side.lengths > MAX_CHARACTERS)),
    )
