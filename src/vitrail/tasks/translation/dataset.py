"""The typed form of parallel text."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from vitrail.data.dataset import DividedDataset
from vitrail.data.findings import Finding
from vitrail.data.splits import SplitName
from vitrail.data.text.languages import Languages


class PairSplit:
    """Sentences and their translations, as text.

    Args:
        sources: without line feeds.
        names: for messages and reports, such as ``train.en:17``; unique within the data set.
    """

    def __init__(self, sources: Sequence[str], targets: Sequence[str], names: Sequence[str]) -> None:
        assert len(sources) == len(targets) == len(names), "sources, targets and names differ in length"
        self.sources, self.targets, self.names = tuple(sources), tuple(targets), tuple(names)

    def __len__(self) -> int:
        return len(self.sources)

    def take(self, indices: Iterable[int] | np.ndarray) -> PairSplit:
        chosen = [int(index) for index in indices]
        sources, targets = ([texts[index] for index in chosen] for texts in (self.sources, self.targets))
        return PairSplit(sources, targets, [self.names[index] for index in chosen])

    @property
    def contents(self) -> tuple[str, ...]:
        return self.sources

    @cached_property
    def fingerprint(self) -> str:
        """Sixteen hexadecimal digits that change with any letter, name or position of a pair."""
        digest = hashlib.blake2b(str(len(self)).encode(), digest_size=8)
        for texts in (self.names, self.sources, self.targets):
            # surrogates: like file names, a name may hold undecodable bytes
            digest.update("\n".join(texts).encode(errors="surrogatepass"))
            digest.update(b"\0")
        return digest.hexdigest()


@dataclass(frozen=True, kw_only=True)
class PairDataset(DividedDataset[PairSplit]):
    """Parallel text in two languages, divided into train, validation and test."""

    languages: tuple[str, str]
    """Language codes such as ``en`` and ``de``, if known."""

    def _named(self) -> bytes:
        return "\n".join(self.languages).encode(errors="surrogatepass")


@dataclass(frozen=True)
class RawPairs:
    """Parallel text as divided by its source, before missing splits are carved out."""

    languages: Languages
    splits: Mapping[SplitName, PairSplit]
    findings: tuple[Finding, ...] = ()
