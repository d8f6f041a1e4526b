"""What all data sets share, whatever their samples are: three splits, where they are from, a fingerprint."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, Self, TypeVar, runtime_checkable

from vitrail.data.findings import Finding


@runtime_checkable
class Split(Protocol):
    """Samples of any kind."""

    def __len__(self) -> int: ...

    def take(self, indices: Any, /) -> Self:
        """Return some of the samples."""
        ...


@runtime_checkable
class NamedSplit(Split, Protocol):
    """Samples with names."""

    @property
    def names(self) -> tuple[str, ...]:
        """The name of each sample."""
        ...

    @property
    def fingerprint(self) -> str:
        """Sixteen hexadecimal digits that change with the content."""
        ...


S = TypeVar("S", bound=NamedSplit)


@dataclass(frozen=True, kw_only=True)
class DividedDataset(Generic[S]):
    """A data set that is divided into train, validation and test."""

    source: str
    """What was opened: a path or a name."""
    format: str
    """Name of the format that was recognised."""
    train: S
    """Samples to learn from; empty where the source holds samples to be tested alone."""
    validation: S
    """Samples to make choices on; may be empty."""
    test: S
    """Samples for the final score."""
    validation_origin: str = "from the source"
    """Where the validation split comes from, for the signature of a score."""
    test_origin: str = "from the source"
    """Where the test split comes from, for the signature of a score."""
    findings: tuple[Finding, ...] = ()
    """What the reader noticed: files ignored, rows left out. The doctor passes it on."""

    @property
    def splits(self) -> dict[str, S]:
        """The three splits by name."""
        return {"train": self.train, "validation": self.validation, "test": self.test}

    @property
    def fingerprint(self) -> str:
        """Sixteen hexadecimal digits that change with the names of classes or languages, or with the content
        of any split."""
        digest = hashlib.blake2b(self._named(), digest_size=8)
        for split in self.splits.values():
            digest.update(split.fingerprint.encode())
        return digest.hexdigest()

    def without(self, names: Collection[str]) -> Self:
        """Return the data set without the samples of some names, such as a verdict's ``exclude``."""
        if not names:
            return self
        train, validation, test = (
            split.take([index for index, name in enumerate(split.names) if name not in names])
            for split in self.splits.values()
        )
        return replace(self, train=train, validation=validation, test=test)

    def _named(self) -> bytes:
        """Return what the fingerprint takes account of beside the splits."""
        return b""
