"""The interface of export formats: write a graph, quantise it, run it with its engine."""

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
"""Runs an exported model with its format's plain engine."""


@runtime_checkable
class ExportFormat(Protocol):
    """A format; each is the ``FORMAT`` of a module here."""

    name: str
    """As in the command line and ``Package.format``."""
    precisions: ClassVar[tuple[Precision, ...]]
    """Supported precisions."""
    traces_narrow: bool
    """Whether bfloat16 is part of the graph, rather than left to the engine."""

    def check(self, precision: Precision) -> None:
        """Check that the format can be written here.

        Raises:
            ConfigError: a package is not installed, or neither format nor machine has the precision.
        """
        ...

    def check_engine(self, precision: Precision) -> None:
        """Check that the format can be run here, which needs fewer packages than writing.

        Raises:
            ConfigError: as ``check``.
        """
        ...

    def write(
        self, traced: Traced, folder: Path, *, precision: Precision, calibration: Sequence[Inputs]
    ) -> None:
        """Write the files of a model into a folder.

        Args:
            calibration: batches for int8 calibration.

        Raises:
            ConfigError: the engine has no such operation, which is named.
        """
        ...

    def open(self, folder: Path, precision: Precision, *, trust: bool = False) -> Runner:
        """Return a function that runs the files of a folder on the CPU, with torch's number of threads.

        Args:
            trust: whether code in the files may run; only torch's can hold any.

        Raises:
            ConfigError: the engine does not support the model (an operation is named if known); or reading
                the files may run code, and they are not trusted.
        """
        ...
