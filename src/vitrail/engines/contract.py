"""The interface of engines, and how one is built: normalised images in, float32 outputs on the CPU out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol, get_args, runtime_checkable

import torch
from torch import Tensor

from vitrail.core.errors import ConfigError, DataError, check_name
from vitrail.engines.export.package import Format, Package, Precision
from vitrail.models.checkpoint import LoadedModel

EngineName = Literal["torch", "compiled", "onnxruntime", "openvino"]
Inputs = tuple[Tensor, ...]
"""Normalised images; of a detector also their sizes."""
Outputs = tuple[Tensor, ...]
"""Logits; of a detector also boxes."""

ENGINES: tuple[EngineName, ...] = get_args(EngineName)
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
DEFAULTS: Mapping[Format, EngineName] = {"torch": "torch", "onnx": "onnxruntime", "openvino": "openvino"}
"""The default engine of each package format."""
AUTOMATIC = "auto"


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


@runtime_checkable
class EngineKind(Protocol):
    """A library that runs models; ``KINDS`` of a module has each."""

    name: EngineName
    format: Format
    """Package format that it runs natively."""
    precisions: tuple[Precision, ...]
    """Those supported on some machine."""

    def check(self, precision: Precision, device: torch.device) -> None:
        """Check that the engine can run here.

        Raises:
            ConfigError: a package is not installed, or engine, CPU or device lack the precision.
        """

    def build(
        self, loaded: LoadedModel, precision: Precision, device: torch.device, calibration: Sequence[Inputs]
    ) -> Engine:
        """Return an engine that is ready to run.

        Raises:
            ConfigError: as ``check``; or the engine does not support an operation of the model, which is
                named.
        """


def build_engine(
    source: LoadedModel | Package,
    *,
    engine: str | None = None,
    precision: str | None = None,
    device: str | torch.device | None = None,
    calibration: Sequence[Inputs] = (),
    trust: bool = False,
) -> Engine:
    """Build an engine for a model.

    Args:
        source: a model, or an exported one.
        engine: one of ``ENGINES``; by default torch, or a package's own.
        precision: by default float32, or a package's own.
        device: for torch by default a GPU, if there is one.
        calibration: batches for int8 calibration.
        trust: whether a torch package may be loaded, which can run its author's code.

    Raises:
        ConfigError: there is no such engine or precision, it does not fit the package, it is not installed,
            or it does not support the model; or the package is not trusted.
        DataError: int8 has no images to take ranges from.
    """
    kind = find_kind(engine or default_engine(source))
    chosen = precision or (source.precision if isinstance(source, Package) else "float32")
    check_name("precision", chosen, PRECISIONS)
    if chosen not in kind.precisions:
        raise ConfigError(
            f"the engine {kind.name} does not support {chosen}",
            expected=f"one of its precisions: {', '.join(kind.precisions)}",
            remedy="Choose another precision or engine",
        )
    if isinstance(source, Package):
        _check_package(source, kind, chosen)
    if device is None:
        device = "cuda" if kind.format == "torch" and torch.cuda.is_available() else "cpu"
    where = torch.device(device)
    kind.check(chosen, where)
    if isinstance(source, Package):
        from vitrail.engines.package_engine import open_package

        return open_package(source, trust=trust)
    if chosen == "int8" and not calibration:
        raise DataError(
            "int8 has no images to calibrate its ranges on",
            expected="images like those that the model will run on",
            remedy="Export it (vitrail export RUN --format openvino --precision int8), or give calibration=",
        )
    return kind.build(source, chosen, where, calibration)


def find_kind(name: str) -> EngineKind:
    """Return the kind of an engine.

    Raises:
        ConfigError: there is none.
    """
    from vitrail.engines import package_engine, torch_engine  # which import this file

    check_name("engine", name, [*ENGINES, AUTOMATIC])
    kinds: tuple[EngineKind, ...] = (*torch_engine.KINDS, *package_engine.KINDS)
    return next(kind for kind in kinds if kind.name == name)


def default_engine(source: LoadedModel | Package) -> EngineName:
    """Return the default engine of a source."""
    return DEFAULTS[source.format if isinstance(source, Package) else "torch"]


def _check_package(package: Package, kind: EngineKind, precision: Precision) -> None:
    if package.format != kind.format:
        raise ConfigError(
            f"{package.folder} holds a model in the format {package.format}, not for {kind.name}",
            expected=f"the engine {default_engine(package)}, its default",
            remedy="Leave the engine out, or export the model in another format",
        )
    if kind.name == "compiled":
        raise ConfigError(
            f"{package.folder} is an exported graph, which cannot be compiled again",
            expected="a run, or the folder of a saved model",
            remedy="Choose the engine torch, or name the run that was exported",
        )
    if package.precision != precision:
        raise ConfigError(
            f"{package.folder} holds a model in {package.precision}, not in {precision}",
            expected="the precision that it was exported in",
            remedy="Leave the precision out, or export the model in the other one",
        )
