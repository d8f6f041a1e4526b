"""Packages run by their format's library: ONNX Runtime, OpenVINO, torch."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from vitrail.core.errors import ConfigError, DataError
from vitrail.engines.contract import EngineName, Inputs, Outputs, default_engine
from vitrail.engines.export.comparison import fit_canvas
from vitrail.engines.export.exporting import canvas_of
from vitrail.engines.export.formats import FORMATS, Runner
from vitrail.engines.export.package import Format, Package, PortSpec, Precision
from vitrail.engines.export.tracing import trace
from vitrail.models.checkpoint import LoadedModel


@dataclass
class PackageEngine:
    """An exported model as an engine."""

    name: str
    precision: str
    runner: Runner
    ports: Sequence[PortSpec]
    """Its inputs."""
    outputs: Sequence[PortSpec]

    def run(self, inputs: Inputs) -> Outputs:
        images, *sizes = (each.cpu() for each in inputs)
        if sizes:
            images = fit_canvas(images, self.ports[0])
        self._check(images.shape)
        outputs = tuple(each.float() for each in self.runner((images.contiguous(), *sizes)))
        shapes = [tuple(each.shape) for each in outputs]
        expected = [(len(images), *port.axes[1:]) for port in self.outputs]
        if shapes != expected:
            raise ConfigError(
                f"the exported model gives outputs of the shapes {shapes}",
                expected=f"the shapes {expected} that its description gives",
                remedy="Export the model again",
            )
        return outputs

    def _check(self, shape: torch.Size) -> None:
        """Refuse image sizes that the export does not support."""
        port = self.ports[0]
        is_other = any(
            isinstance(axis, int) and length != axis for length, axis in zip(shape, port.axes, strict=True)
        )
        multiple = port.multiple_of
        if is_other or any(length % multiple for length in shape[2:]):
            multiples = f", height and width multiples of {multiple}" if multiple > 1 else ""
            raise DataError(
                f"images of the shape {'x'.join(map(str, shape))}",
                expected="x".join(map(str, port.axes)) + multiples,
                remedy="Prepare the images as the package says, or export the model for this size",
            )


class ConvertingKind:
    """A library that runs models of a format, on the CPU."""

    def __init__(self, name: EngineName, model_format: Format) -> None:
        self.name, self.format = name, model_format
        self.precisions = FORMATS[model_format].precisions

    def check(self, precision: Precision, device: torch.device) -> None:
        """Refuse other devices than the CPU, and what the engine refuses; conversion may need more."""
        if device.type != "cpu":
            raise ConfigError(
                f"the engine {self.name} runs on the CPU, not on {device.type}",
                expected="the device cpu",
                remedy="Leave the device out, or choose the engine torch",
            )
        FORMATS[self.format].check(precision, writes=False)

    def build(
        self, loaded: LoadedModel, precision: Precision, device: torch.device, calibration: Sequence[Inputs]
    ) -> PackageEngine:
        """Run the model as converted in a temporary folder."""
        writer = FORMATS[self.format]
        writer.check(precision)
        with tempfile.TemporaryDirectory() as name:
            traced = trace(loaded.model, canvas_of(loaded))
            writer.write(traced, Path(name), precision=precision, calibration=calibration)
            runner = writer.open(Path(name), precision, trust=True)  # just written
            return PackageEngine(self.name, precision, runner, traced.inputs, traced.outputs)


def open_package(package: Package, *, trust: bool) -> PackageEngine:
    """Run an exported model with the engine of its format."""
    runner = FORMATS[package.format].open(package.folder, package.precision, trust=trust)
    engine = default_engine(package)
    return PackageEngine(engine, package.precision, runner, package.inputs, package.outputs)


KINDS = (ConvertingKind("onnxruntime", "onnx"), ConvertingKind("openvino", "openvino"))
