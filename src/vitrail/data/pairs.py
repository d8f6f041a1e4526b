"""The typed form in which all parallel text arrives, whatever its files looked like."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from vitrail.data.findings import Finding


class PairSplit:
    """Sentences and their translations, as text.

    Args:
        sources: sentences to translate; none holds a line feed.
        targets: the translation of each.
        names: what to call each pair in messages and reports, such as ``train.en:17``; unique within its
            data set.
    """

    def __init__(self, sources: Sequence[str], targets: Sequence[str], names: Sequence[str]) -> None:
        assert len(sources) == len(targets) == len(names), "sources, targets and names differ in length"
        self.sources, self.targets, self.names = tuple(sources), tuple(targets), tuple(names)

    def __len__(self) -> int:
        return len(self.sources)

    def take(self, indices: Iterable[int] | np.ndarray) -> PairSplit:
        """Return the pairs at some indices, in that order."""
        chosen = indices.tolist() if isinstance(indices, np.ndarray) else list(indices)
        return PairSplit(
            [self.sources[index] for index in chosen],
            [self.targets[index] for index in chosen],
            [self.names[index] for index in chosen],
        )

    @cached_property
    def fingerprint(self) -> str:
        """Sixteen hexadecimal digits that change with any letter, name or place of a pair."""
        digest = hashlib.blake2b(str(len(self)).encode(), digest_size=8)
        for texts in (self.names, self.sources, self.targets):
            # a name may hold what is no text, as names of files may
            digest.update("\n".join(texts).encode(errors="surrogatepass"))
            digest.update(b"\0")
        return digest.hexdigest()


@dataclass(frozen=True)
class PairDataset:
    """Parallel text in two languages, divided into train, validation and test."""

    source: str
    """What was opened: a path or a name."""
    format: str
    """Name of the format that was recognised."""
    languages: tuple[str, str]
    """What source and target side are called: codes such as ``en`` and ``de`` where they are known."""
    train: PairSplit
    """Pairs to learn from; empty where the source holds pairs to be tested alone."""
    validation: PairSplit
    """Pairs to make choices on; may be empty."""
    test: PairSplit
    """Pairs for the final score."""
    validation_origin: str = "from the source"
    """Where the validation split comes from, for the signature of a score."""
    test_origin: str = "from the source"
    """Where the test split comes from, for the signature of a score."""
    findings: tuple[Finding, ...] = field(default=())
    """What the reader noticed: files not used, languages chosen. The doctor passes it on."""

    @property
    def splits(self) -> dict[str, PairSplit]:
        """The three splits by name."""
        return {"train": self.train, "validation": self.validation, "test": self.test}

    @property
    def fingerprint(self) -> str:
        """Sixteen hexadecimal digits that change with the languages or the content of any split."""
        digest = hashlib.blake2b("\n".join(self.languages).encode(errors="surrogatepass"), digest_size=8)
        for split in self.splits.values():
            digest.update(split.fingerprint.encode())
        return digest.hexdigest()

    def without(self, names: Collection[str]) -> PairDataset:
        """Return the data set without the pairs of some names, such as a verdict's ``exclude``."""
        if not names:
            return self
        train, validation, test = (
            split.take([index for index, name in enumerate(split.names) if name not in names])
            for split in self.splits.values()
        )
        return replace(self, train=train, validation=validation, test=test)
