"""The typed form of labelled texts."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from vitrail.data.dataset import DividedDataset
from vitrail.data.findings import Finding
from vitrail.data.splits import SplitName
from vitrail.data.text_preprocessing import Labels


class TextRow(NamedTuple):
    """One text as it is read."""

    parts: tuple[str, ...]
    """What has a label each: the whole text, or its words."""
    labels: tuple[str, ...]
    """As many as there are parts."""
    name: str
    """For messages, such as ``train.conll:17``."""


class RawTexts(NamedTuple):
    """Labelled texts as divided by their source, before missing splits are carved out."""

    labels: Labels
    splits: Mapping[SplitName, Sequence[TextRow]]
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True, eq=False)
class TextSplit:
    """Labelled texts."""

    parts: tuple[tuple[str, ...], ...] = ()
    """Of each text, what has a label: the text alone, or its words."""
    labels: tuple[np.ndarray, ...] = ()
    """Class indices of each text's parts."""
    names: tuple[str, ...] = ()
    """For messages and reports; unique within the data set."""

    def __len__(self) -> int:
        return len(self.parts)

    def take(self, indices: Iterable[int] | np.ndarray) -> TextSplit:
        rows = [(self.parts[index], self.labels[index], self.names[index]) for index in indices]
        return TextSplit(*zip(*rows, strict=True)) if rows else TextSplit()

    @property
    def contents(self) -> list[tuple[str, ...]]:
        return [tuple(part.casefold() for part in parts) for parts in self.parts]

    def text(self, index: int) -> str:
        """Return a text, its words joined by spaces."""
        return " ".join(self.parts[index])

    def count_per_class(self, num_classes: int) -> np.ndarray:
        """Return how many parts have each label."""
        return np.bincount(np.concatenate([np.zeros(0, np.int64), *self.labels]), minlength=num_classes)

    @cached_property
    def fingerprint(self) -> str:
        """Sixteen hexadecimal digits that change with any letter, label, name or position."""
        digest = hashlib.blake2b(str(len(self)).encode(), digest_size=8)
        for parts, labels, name in zip(self.parts, self.labels, self.names, strict=True):
            digest.update("\n".join((name, *parts)).encode(errors="surrogatepass") + labels.tobytes())
        return digest.hexdigest()


@dataclass(frozen=True, kw_only=True)
class TextDataset(DividedDataset[TextSplit]):
    """Labelled texts, divided into train, validation and test."""

    class_names: tuple[str, ...]
    """In the order of the labels."""
    labels: Labels
    """What has a label: each sentence, or each of its words."""

    def _named(self) -> bytes:
        return "\n".join((self.labels, *self.class_names)).encode(errors="surrogatepass")
