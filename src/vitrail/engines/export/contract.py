"""What every format is: how a graph is written, made whole numbers, and run by the engine it is for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar, Protocol, runtime_checkable

from torch import Tensor

from vitrail.engines.export.package import Precision
from vitrail.engines.export.tracing import Traced

Inputs = tuple[Tensor, ...]
"""Normalised images; of a detector also their sizes."""
Outputs = tuple[Tensor, ...]
"""Logits; of a detector also boxes."""
Runner = Callable[[Inputs], Outputs]
"""Runs an exported model with the plain engine that its format is for."""


@runtime_checkable
class ExportFormat(Protocol):
    """A format; each is the ``FORMAT`` of a file here."""

    name: str
    """As the command and ``Package.format`` have it."""
    precisions: ClassVar[tuple[Precision, ...]]
    """Those that it can be written in."""
    traces_narrow: bool
    """Whether bfloat16 is part of the graph, and not left to the engine."""

    def check(self, precision: Precision) -> None:
        """Refuse what cannot be written here.

        Raises:
            ConfigError: a package is not installed, or neither format nor machine has the precision.
        """
        ...

    def check_engine(self, precision: Precision) -> None:
        """Refuse what cannot be run here, written or not: running takes fewer packages than writing.

        Raises:
            ConfigError: as ``check``.
        """
        ...

    def write(
        self, traced: Traced, folder: Path, *, precision: Precision, calibration: Sequence[Inputs]
    ) -> None:
        """Write the files of a model into a folder.

        Args:
            traced: the graph.
            folder: exists.
            precision: number type of the matrix products.
            calibration: batches that ranges of whole numbers are taken from; none for other precisions.

        Raises:
            ConfigError: the engine has no such operation, which is named.
        """
        ...

    def open(self, folder: Path, precision: Precision, *, trust: bool = False) -> Runner:
        """Return what runs the files of a folder, on the processor and with as many threads as torch has.

        Args:
            folder: holds what ``write`` wrote.
            precision: that it was written in.
            trust: whether code in the files may run; only those of torch can hold any.

        Raises:
            ConfigError: the engine cannot take the model, whose operation is named where it says which; or
                reading the files may run code of theirs, and they are not trusted.
        """
        ...
