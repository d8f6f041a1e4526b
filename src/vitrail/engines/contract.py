"""What every engine is: normalised images in, what the model answers out, as float32 on the processor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, get_args, runtime_checkable

import torch
from torch import Tensor

from vitrail.core.errors import DataError
from vitrail.engines.export.package import Format, Package, Precision
from vitrail.models.checkpoint import LoadedModel

EngineName = Literal["torch", "compiled", "onnxruntime", "openvino"]
Inputs = tuple[Tensor, ...]
Outputs = tuple[Tensor, ...]

ENGINES: tuple[EngineName, ...] = get_args(EngineName)
PRECISIONS: tuple[Precision, ...] = get_args(Precision)


@runtime_checkable
class Engine(Protocol):
    """Runs one model with one library, in one precision."""

    name: str
    """One of ``ENGINES``."""
    precision: str
    """One of ``PRECISIONS``: how matrix products are computed; inputs and outputs are float32 in each."""

    def run(self, inputs: Inputs) -> Outputs:
        """Return what the model answers to one batch.

        Args:
            inputs: normalised images (batch channels height width, float32); of a detector also their sizes
                without padding (batch 2, int64: height, width).

        Returns:
            float32 tensors on the processor: logits (batch classes); of a detector logits (batch queries
            classes) and boxes (batch queries 4, as shares of each image, centre, width and height).

        Raises:
            DataError: the engine cannot take a batch or images of this size.
        """
        ...


@dataclass(frozen=True)
class EngineRequest:
    """What an engine is built for."""

    source: LoadedModel | Package
    """The model."""
    precision: Precision
    """Number type of the matrix products."""
    device: torch.device
    """Where it runs; engines other than torch's run on the processor alone."""
    calibration: Sequence[Inputs] = ()
    """Batches that the ranges of int8 are taken from; none for other precisions."""
    trust: bool = False
    """Whether code in the files of a package may run."""

    def check_calibration(self) -> None:
        """Refuse int8 without batches.

        Raises:
            DataError: there are none.
        """
        if self.precision == "int8" and not self.calibration:
            raise DataError(
                "int8 has no images to take its ranges from",
                expected="images like those that the model will be given",
                remedy="Export it (vitrail export RUN --format openvino --precision int8), or give "
                "calibration=",
            )


@runtime_checkable
class EngineKind(Protocol):
    """A library that runs models; each is the ``KIND`` of a file here."""

    name: EngineName
    """As users have it."""
    format: Format
    """Of the packages that it runs as they are."""

    @property
    def precisions(self) -> tuple[Precision, ...]:
        """Those that it has on some machine."""
        ...

    def check(self, precision: Precision, device: torch.device) -> None:
        """Refuse what cannot run here.

        Raises:
            ConfigError: a package is not installed, or engine, processor or device lack the precision.
        """
        ...

    def build(self, request: EngineRequest) -> Engine:
        """Return an engine that is ready to run.

        Raises:
            ConfigError: as ``check``; or the engine cannot take the model, whose operation is named.
            DataError: int8 has no images to take ranges from.
        """
        ...
