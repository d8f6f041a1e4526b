"""Packages run by their format's library: ONNX Runtime, OpenVINO, torch."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

from vitrail.core.errors import ConfigError, DataError
from vitrail.engines.contract import EngineName, EngineRequest, Inputs, Outputs
from vitrail.engines.export.contract import Runner
from vitrail.engines.export.exporting import FORMATS, canvas_of
from vitrail.engines.export.package import Format, Package, PortSpec, Precision
from vitrail.engines.export.samples import fit_canvas
from vitrail.engines.export.tracing import trace
from vitrail.models.checkpoint import LoadedModel


class PackageEngine:
    """An exported model as an engine.

    Args:
        name: one of ``ENGINES``.
        ports: its inputs.
    """

    def __init__(
        self, name: EngineName, precision: Precision, runner: Runner, ports: Sequence[PortSpec]
    ) -> None:
        self.name: str = name
        self.precision: str = precision
        self.runner, self.ports = runner, tuple(ports)

    def run(self, inputs: Inputs) -> Outputs:
        images, *sizes = (each.cpu() for each in inputs)
        if sizes:
            images = fit_canvas(images, self.ports[0])
        self._check(images.shape)
        return tuple(each.float() for each in self.runner((images.contiguous(), *sizes)))

    def _check(self, shape: torch.Size) -> None:
        """Refuse image sizes that the export does not support."""
        port = self.ports[0]
        pairs = list(zip(shape, port.axes, strict=True))
        is_other = any(isinstance(axis, int) and length != axis for length, axis in pairs)
        if is_other or any(length % port.multiple_of for length in shape[2:]):
            raise DataError(
                f"images of the shape {'x'.join(map(str, shape))}",
                expected="x".join(map(str, port.axes)) + _multiples(port),
                remedy="Prepare the images as the package says, or export the model for this size",
            )


class ConvertingKind:
    """A library that runs models of a format.

    Args:
        model_format: its native format.
    """

    def __init__(self, name: EngineName, model_format: Format) -> None:
        self.name, self.format = name, model_format

    @property
    def precisions(self) -> tuple[Precision, ...]:
        return FORMATS[self.format].precisions

    def check(self, precision: Precision, device: torch.device) -> None:
        """Refuse other devices than the CPU, and what the engine refuses; conversion may need more."""
        if device.type != "cpu":
            raise ConfigError(
                f"the engine {self.name} was asked for on {device.type}",
                expected="the processor, which it runs on here",
                remedy="Leave the device out, or choose the engine torch",
            )
        FORMATS[self.format].check_engine(precision)

    def build(self, request: EngineRequest) -> PackageEngine:
        """Run a package, or a model converted in a temporary folder."""
        source = request.source
        if isinstance(source, Package):
            runner = FORMATS[self.format].open(source.folder, source.precision, trust=request.trust)
            return PackageEngine(self.name, source.precision, runner, source.inputs)
        with tempfile.TemporaryDirectory() as folder:
            return self._convert(source, request, Path(folder))

    def _convert(self, loaded: LoadedModel, request: EngineRequest, folder: Path) -> PackageEngine:
        request.check_calibration()
        writer = FORMATS[self.format]
        writer.check(request.precision)
        is_narrow = request.precision == "bfloat16" and writer.traces_narrow
        traced = trace(loaded.model, canvas_of(loaded), is_narrow=is_narrow)
        writer.write(traced, folder, precision=request.precision, calibration=request.calibration)
        runner = writer.open(folder, request.precision, trust=True)  # just written
        return PackageEngine(self.name, request.precision, runner, traced.inputs)


def _multiples(port: PortSpec) -> str:
    if port.multiple_of == 1:
        return ""
    return f", height and width multiples of {port.multiple_of}"
