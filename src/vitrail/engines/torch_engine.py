"""Models run by torch itself: eager or compiled."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.core.errors import ConfigError, first_line
from vitrail.engines.contract import Engine, EngineName, Inputs, Outputs
from vitrail.engines.cpu import accelerate, settle_norms
from vitrail.engines.export.package import Format, Precision
from vitrail.engines.packing import copy_for_inference, pack_linear_layers
from vitrail.models.checkpoint import LoadedModel
from vitrail.models.contract import is_padded
from vitrail.train.machine import best_precision

_COMPILES = threading.Lock()  # compiler settings are global to the process
COMPILER_FAULTS = ("InvalidCxxCompiler", "CppCompileError", "BackendCompilerFailed", "InductorError")


@dataclass
class TorchEngine:
    """A torch model, eager or compiled."""

    name: str
    """``torch`` or ``compiled``."""
    precision: str
    forward: Callable[..., Any]
    device: torch.device
    dtype: torch.dtype = torch.float32
    """Of its inputs."""

    def run(self, inputs: Inputs) -> Outputs:
        images, *sizes = inputs
        given: list[Tensor | None] = [images.to(self.device, self.dtype)]
        if sizes:
            given.append(sizes[0].to(self.device) if is_padded(images, sizes[0]) else None)
        # Frozen graphs are kept under no_grad; inference mode would compile anew.
        with torch.no_grad() if self.name == "compiled" else torch.inference_mode():
            try:
                output = self.forward(*given)
            except Exception as error:
                if type(error).__name__ not in COMPILER_FAULTS:
                    raise
                raise ConfigError(
                    f"torch.compile does not support the model: {first_line(error)}",
                    expected="a C++ compiler on this machine, and operations that torch.compile supports",
                    remedy="Install g++, or choose the engine torch",
                ) from error
        if isinstance(output, Tensor):
            return (output.float().cpu(),)
        logits, boxes, *_ = output
        return logits.float().cpu(), boxes.float().cpu()


class Compiled:
    """A compiled model, compiled at its first batch of one, and at its first larger batch."""

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        self.is_on_cpu = device.type == "cpu"
        self.module = torch.compile(model)
        self._known: set[tuple[torch.Size | None, ...]] = set()

    def __call__(self, *inputs: Tensor | None) -> Any:
        shapes = tuple(None if each is None else each.shape for each in inputs)
        if shapes in self._known or not self.is_on_cpu:
            return self.module(*inputs)
        for each in inputs:
            if each is not None and each.shape[0] > 1:  # one graph for every batch size above one
                torch._dynamo.maybe_mark_dynamic(each, 0)
        with _COMPILES, _freezing():
            output = self.module(*inputs)
        self._known.add(shapes)
        return output


@contextmanager
def _freezing() -> Iterator[None]:
    """Let the compiler freeze weights, and prepack them for oneDNN.

    The setting is global: as an option of ``torch.compile`` it is ignored (torch 2.13). Where products may
    round to TF32, the compiler takes oneDNN instead of MKL, which is slow on CPUs of other makers; they have
    no TF32, and none of the later calls may round.
    """
    from torch._inductor import config as inductor_config

    products: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before, products.fp32_precision = products.fp32_precision, "tf32"
    try:
        with inductor_config.patch(freezing=True):
            yield
    finally:
        products.fp32_precision = before


class TorchKind:
    """The kind ``torch`` or ``compiled``."""

    format: Format = "torch"

    def __init__(self, name: EngineName, precisions: tuple[Precision, ...]) -> None:
        self.name, self.precisions = name, precisions

    def check(self, precision: Precision, device: torch.device) -> None:
        """Refuse bfloat16 without hardware support, and int8 on other devices than a CPU."""
        if precision == "bfloat16" and best_precision(device) != "bfloat16":
            raise ConfigError(
                f"{device.type} has no fast bfloat16 here",
                expected="a CPU with AVX-512 BF16 or AMX, or a GPU that has it",
                remedy="Choose float32 or int8",
            )
        if precision == "int8" and (device.type != "cpu" or not torch.backends.mkldnn.is_available()):
            raise ConfigError(
                f"torch has no int8 for {device.type} here",
                expected="a CPU, and a build of torch with oneDNN",
                remedy="Choose bfloat16 or float32",
            )

    def build(
        self, loaded: LoadedModel, precision: Precision, device: torch.device, calibration: Sequence[Inputs]
    ) -> Engine:
        """Return the model with its layers replaced by faster ones without gradients."""
        model = self._prepare(loaded.model.eval(), precision, device, calibration)
        forward: Callable[..., Any] = Compiled(model, device) if self.name == "compiled" else model
        dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
        return TorchEngine(self.name, precision, forward, device=device, dtype=dtype)

    def _prepare(
        self, model: nn.Module, precision: Precision, device: torch.device, calibration: Sequence[Inputs]
    ) -> nn.Module:
        """Return a model in one precision; the given one keeps its layers and type."""
        if device.type != "cpu" and precision == "float32":
            return model.to(device)
        model = accelerate(copy_for_inference(model))
        settle_norms(model)
        if precision == "bfloat16":
            model = copy.deepcopy(model).bfloat16()
        if self.name == "compiled" or device.type != "cpu":
            return model.to(device)  # the compiler packs weights itself
        if precision == "int8":
            # Imported here: only int8 needs these layers.
            from vitrail.engines.quantised import observe, quantise_layers

            is_fast = best_precision(device) == "bfloat16"
            model = quantise_layers(model, observe(model, calibration), narrow=is_fast)
        return pack_linear_layers(model) if torch.backends.mkldnn.is_available() else model


KINDS = (TorchKind("torch", ("float32", "bfloat16", "int8")), TorchKind("compiled", ("float32", "bfloat16")))
