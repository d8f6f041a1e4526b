"""Builds an engine from a user's choice, and checks that it fits the model."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence

import torch

from vitrail.core.errors import ConfigError, did_you_mean
from vitrail.engines.contract import PRECISIONS, Engine, EngineKind, EngineName, EngineRequest, Inputs
from vitrail.engines.export.package import Format, Package, Precision
from vitrail.models.checkpoint import LoadedModel

MODULES: Mapping[str, str] = {
    "torch": "torch_engine",
    "compiled": "torch_engine",
    "onnxruntime": "package_engine",
    "openvino": "package_engine",
}
"""The module of every engine, with its kind in ``KINDS``; imported on demand."""
DEFAULTS: Mapping[Format, EngineName] = {"torch": "torch", "onnx": "onnxruntime", "openvino": "openvino"}
"""The default engine of each package format."""
AUTOMATIC = "auto"


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
        engine: a name of ``MODULES``; by default torch, or a package's own.
        precision: by default float32, or a package's own.
        device: for torch by default a GPU, if there is one.
        calibration: batches for int8 calibration.
        trust: whether a torch package may be loaded, which can run its author's code.

    Raises:
        ConfigError: there is no such engine or precision, it does not fit the package, it is not installed,
            or it cannot take the model; or the package is not trusted.
        DataError: int8 has no images to take ranges from.
    """
    kind = find_kind(engine or default_engine(source))
    chosen = precision or (source.precision if isinstance(source, Package) else "float32")
    if chosen not in PRECISIONS:
        raise ConfigError(
            f"there is no precision named {chosen!r}",
            expected=f"one of {', '.join(PRECISIONS)}",
            remedy=did_you_mean(chosen, PRECISIONS),
        )
    if chosen not in kind.precisions:
        raise ConfigError(
            f"the engine {kind.name} does not support {chosen}",
            expected=f"one of its precisions: {', '.join(kind.precisions)}",
            remedy="Choose another precision or engine",
        )
    if isinstance(source, Package):
        _check_package(source, kind, chosen)
    where = pick_device(device, kind)
    kind.check(chosen, where)
    return kind.build(EngineRequest(source, chosen, where, calibration, trust))


def find_kind(name: str) -> EngineKind:
    """Return the kind of an engine.

    Raises:
        ConfigError: there is none.
    """
    if name not in MODULES:
        raise ConfigError(
            f"there is no engine named {name!r}",
            expected=f"one of {', '.join(MODULES)}, or {AUTOMATIC}",
            remedy=did_you_mean(name, [*MODULES, AUTOMATIC]),
        )
    kinds: tuple[EngineKind, ...] = importlib.import_module(f"vitrail.engines.{MODULES[name]}").KINDS
    return next(kind for kind in kinds if kind.name == name)


def default_engine(source: LoadedModel | Package) -> EngineName:
    """Return the default engine of a source."""
    return DEFAULTS[source.format if isinstance(source, Package) else "torch"]


def pick_device(device: str | torch.device | None, kind: EngineKind) -> torch.device:
    """Return the requested device, by default a GPU if there is one and the engine supports it."""
    if device is not None:
        return torch.device(device)
    return torch.device("cuda" if kind.name in ("torch", "compiled") and torch.cuda.is_available() else "cpu")


def _check_package(package: Package, kind: EngineKind, precision: Precision) -> None:
    if package.format != kind.format:
        raise ConfigError(
            f"{package.folder} holds a model in the format {package.format}, not for {kind.name}",
            expected=f"the engine {default_engine(package)}, its default",
            remedy="Leave the engine out, or export the model in another format",
        )
    if package.precision != precision:
        raise ConfigError(
            f"{package.folder} holds a model in {package.precision}, not in {precision}",
            expected="the precision that it was exported in",
            remedy="Leave the precision out, or export the model in the other one",
        )
