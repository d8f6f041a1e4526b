"""Cost of a forward pass, counted on the meta device: operations, activations, memory, attention.

Nothing is computed, so any model is counted in moments on any machine.
"""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry, sdpa_flop_count

from vitrail.core.config import Config
from vitrail.models.contract import DetectionModelConfig, ModelConfig, building
from vitrail.models.unfilled import Unfilled
from vitrail.nn.tap import TokenGrids

PRODUCTS = frozenset(flop_registry)


class PartCost(NamedTuple):
    """Cost of one part of a model in a forward pass."""

    macs: int = 0
    """Multiply-accumulates of convolutions and matrix products."""
    activations: int = 0
    """Elements written by convolutions, linear layers and attention."""


class AttentionCard(Config):
    """Size of one layer's attention matrices for one input, per head."""

    layer: str
    """Dotted name of the layer."""
    heads: int
    """Number of heads."""
    windows: int
    """Attention windows; 1 without windows."""
    queries: int
    """Queries per window, or in all."""
    keys: int
    """Keys per window, or in all."""
    elements: int
    """Elements of one head's matrices as computed, with padding: windows x queries x keys."""
    global_elements: int
    """Elements of one head's matrix if attention were global; on the finer grid where queries and keys have
    different ones, and as computed for cross-attention."""


class ForwardCost(NamedTuple):
    """Cost of a forward pass."""

    parts: dict[str, PartCost]
    """By name of the part; operations outside all parts under the empty name."""
    peak_bytes: int
    """Peak memory of weights, buffers, input and intermediate results."""
    attention: list[AttentionCard]
    """Of each attention layer, in execution order."""

    @property
    def macs(self) -> int:
        """Multiply-accumulates of the whole model."""
        return sum(part.macs for part in self.parts.values())


def count_parameters(build: Callable[[], nn.Module]) -> int:
    """Return the number of parameters of the model that ``build`` returns, without allocating it."""
    # The garbage collector walks through all of torch, and building a model triggers it several times.
    collects = gc.isenabled()
    gc.disable()
    try:
        with Unfilled():
            model = build()
        return sum(parameter.numel() for parameter in model.parameters())
    finally:
        if collects:
            gc.enable()


def count_model(config: ModelConfig, size: tuple[int, int] | None = None) -> ForwardCost:
    """Count the cost of a model for one input of ``ModelConfig.example_inputs``, without parts."""
    return count_forward(*build_on_meta(config, size), {})


def build_on_meta(
    config: ModelConfig, size: tuple[int, int] | None = None
) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Return a model in evaluation mode and one input, both on the meta device."""
    with building(config), torch.device("meta"):
        model, inputs = config.build().eval(), config.example_inputs(1, size)
    # Sizes would be compared with the images, to find padding.
    return model, inputs[:1] if isinstance(config, DetectionModelConfig) else inputs


def count_forward(
    model: nn.Module, inputs: Tensor | tuple[Tensor, ...], parts: Mapping[str, list[nn.Module]]
) -> ForwardCost:
    """Count the cost of a model for some inputs; both on the meta device.

    Fused attention never materialises its weights, as in the kernels that a model runs with. Memory is
    estimated by following every tensor from allocation to release; the kernels' own workspace comes on top.

    Args:
        model: in evaluation mode.
        parts: modules by part name, none inside another.
    """
    meter = _Meter()
    given = inputs if isinstance(inputs, tuple) else (inputs,)
    for tensor in [*model.parameters(), *model.buffers(), *given]:
        meter.follow(tensor)
    sizes: list[AttentionCard] = []
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        for name, module in model.named_modules():
            if hasattr(module, "tap"):
                module.tap = _SizeTap(name, sizes)
                stack.callback(setattr, module, "tap", None)
        for name, modules in parts.items():
            for module in modules:
                stack.callback(module.register_forward_pre_hook(partial(meter.enter, name)).remove)
                stack.callback(module.register_forward_hook(partial(meter.enter, "")).remove)
        stack.enter_context(meter)
        stack.enter_context(_Fused(meter))
        model(*given)
    return ForwardCost(meter.parts, meter.peak_bytes, sizes)


def feature_shapes(model: nn.Module, images: Tensor) -> list[torch.Size]:
    """Return the shape of each feature map from ``model.features``; both on the meta device."""
    with torch.no_grad(), _Fused(_Meter()):
        return [each.shape for each in model.features(images)]  # type: ignore[operator]


class _Meter(TorchDispatchMode):
    """Count operations and track the memory of every tensor."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.part = ""
        self.parts: dict[str, PartCost] = {}
        self.live_bytes = self.peak_bytes = 0
        self.known: weakref.WeakSet[torch.UntypedStorage] = weakref.WeakSet()

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        out = function(*args, **kwargs)
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor):
                self.follow(tensor)
        packet = getattr(function, "_overloadpacket", None)
        if packet in PRODUCTS:
            flops = flop_registry[packet](*args, **kwargs, out_val=out)
            self.add(flops // 2, out.numel())
        return out

    def enter(self, part: str, *_: object) -> None:
        self.part = part

    def add(self, macs: int, activations: int) -> None:
        known = self.parts.get(self.part, PartCost())
        self.parts[self.part] = PartCost(known.macs + macs, known.activations + activations)

    def follow(self, tensor: Tensor) -> None:
        """Count the memory of a tensor until it is released, unless it is a view of one that is counted."""
        storage = tensor.untyped_storage()
        if storage in self.known:
            return
        self.known.add(storage)
        size = storage.nbytes()
        self.live_bytes += size
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        weakref.finalize(storage, self._end, size)

    def _end(self, size: int) -> None:
        self.live_bytes -= size


class _Fused(TorchFunctionMode):
    """Keep attention and recurrent layers as single operations, like their kernels; meta decomposes them."""

    def __init__(self, meter: _Meter) -> None:
        super().__init__()
        self.meter = meter

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if function is F.scaled_dot_product_attention:
            return self._attend(*args[:3])
        if function is torch.lstm and not isinstance(args[1], Tensor):
            return self._read(args[0], args[1], args[2])
        return function(*args, **kwargs)

    def _attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        out = query.new_empty(*query.shape[:-1], value.shape[-1])
        self.meter.add(sdpa_flop_count(query.shape, key.shape, value.shape) // 2, out.numel())
        return out

    def _read(
        self, x: Tensor, states: Sequence[Tensor], weights: list[Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        steps = math.prod(x.shape[:-1])
        out = x.new_empty(*x.shape[:-1], states[0].shape[0] * states[0].shape[-1])
        self.meter.add(steps * sum(w.numel() for w in weights if w.ndim == 2), out.numel())
        return out, torch.empty_like(states[0]), torch.empty_like(states[1])


class _SizeTap:
    """Tap that records the size of one layer's attention."""

    def __init__(self, layer: str, sizes: list[AttentionCard]) -> None:
        self.layer, self.sizes = layer, sizes

    def __call__(self, query: Tensor, key: Tensor, *, kind: str, grids: TokenGrids | None, **_: Any) -> None:
        self._note(query.shape[1], query.shape[-2], key.shape[-2], kind, grids)

    def take_weights(self, weights: Tensor, *, kind: str, grids: TokenGrids | None, **_: Any) -> None:
        self._note(weights.shape[1], weights.shape[-2], weights.shape[-1], kind, grids)

    def take_result(self, value: Tensor, result: Tensor) -> None:
        """Ignored; the size is already known."""

    def _note(
        self, num_heads: int, num_queries: int, num_keys: int, kind: str, grids: TokenGrids | None
    ) -> None:
        num_windows = 1
        num_global = num_queries * num_keys if kind == "cross" else max(num_queries, num_keys) ** 2
        if grids is not None and grids.windows is not None:
            num_windows = len(grids.windows[0])
            if grids.queries is not None:
                num_global = (grids.queries[0] * grids.queries[1]) ** 2
        self.sizes.append(
            AttentionCard(
                layer=self.layer,
                heads=num_heads,
                windows=num_windows,
                queries=num_queries,
                keys=num_keys,
                elements=num_windows * num_queries * num_keys,
                global_elements=num_global,
            )
        )
