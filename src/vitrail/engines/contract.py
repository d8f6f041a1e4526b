"""The interface of engines: normalised images in, float32 outputs on the CPU out."""

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
"""Normalised images; of a detector also their sizes."""
Outputs = tuple[Tensor, ...]
"""Logits; of a detector also boxes."""

ENGINES: tuple[EngineName, ...] = get_args(EngineName)
PRECISIONS: tuple[Precision, ...] = get_args(Precision)


@runtime_checkable
class Engine(Protocol):
    """Runs one model with one library, in one precision."""

    name: str
    """One of ``ENGINES``."""
    precision: str
    """One of ``PRECISIONS``, of the matrix products; inputs and outputs are float32."""

    def run(self, inputs: Inputs) -> Outputs:
        """Run one batch.

        Args:
            inputs: normalised images (batch channels height width, float32); of a detector also their sizes
                without padding (batch 2, int64: height, width).

        Returns:
            float32 tensors on the CPU: logits (batch classes); of a detector logits (batch queries
            classes) and boxes (batch queries 4, as shares of each image, centre, width and height).

        Raises:
            DataError: the engine does not support this batch or image size.
        """
        ...


@dataclass(frozen=True)
class EngineRequest:
    """What an engine is built from."""

    source: LoadedModel | Package
    precision: Precision
    """Of the matrix products."""
    device: torch.device
    """Engines other than torch's run on the CPU only."""
    calibration: Sequence[Inputs] = ()
    """Batches for int8 calibration."""
    trust: bool = False
    """Whether code in a package's files may run."""

    def check_calibration(self) -> None:
        """Require calibration batches for int8.

        Raises:
            DataError: there are none.
        """
        if self.precision == "int8" and not self.calibration:
            raise DataError(
                "int8 has no images to calibrate its ranges on",
                expected="images like those that the model will run on",
                remedy="Export it (vitrail export RUN --format openvino --precision int8), or give "
                "calibration=",
            )


@runtime_checkable
class EngineKind(Protocol):
    """A library that runs models; ``building.MODULES`` says where each is."""

    name: EngineName
    """User-visible name."""
    format: Format
    """Package format that it runs natively."""

    @property
    def precisions(self) -> tuple[Precision, ...]:
        """Precisions supported on some machine."""
        ...

    def check(self, precision: Precision, device: torch.device) -> None:
        """Check that the engine can run here.

        Raises:
            ConfigError: a package is not installed, or engine, CPU or device lack the precision.
        """
        ...

    def build(self, request: EngineRequest) -> Engine:
        """Return an engine that is ready to run.

        Raises:
            ConfigError: as ``check``; or the engine does not support an operation of the model, which is
                named.
            DataError: int8 without calibration images.
        """
        ...


def first_line(error: BaseException) -> str:
    """Return the first non-empty line of an error, without colours and full stop."""
    lines = (line.strip() for line in str(error).splitlines())
    return next((line.rstrip(".") for line in lines if line), type(error).__name__)
