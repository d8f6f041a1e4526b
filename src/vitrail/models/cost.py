"""What a forward pass costs, counted on the meta device: operations, elements written, memory, attention.

Nothing is computed; tensors have shapes and types but no values, so that any model is counted in moments on
any machine.
"""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry, sdpa_flop_count

from vitrail.nn.attention import Places

FILLED = frozenset({torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn, torch.eye})
PRODUCTS = frozenset(flop_registry)


class PartCost(NamedTuple):
    """What one part of a model does in a forward pass."""

    macs: int = 0
    """Multiplications, each with its addition, of convolutions and matrix products."""
    activations: int = 0
    """Elements written by convolutions, linear layers and attention."""

    def plus(self, macs: int, activations: int) -> PartCost:
        return PartCost(self.macs + macs, self.activations + activations)


class AttentionSize(NamedTuple):
    """The size of one layer's attention for one input."""

    layer: str
    """Dotted name of the layer."""
    num_heads: int
    """Heads, each with a matrix of its own."""
    num_windows: int
    """Parts of the image that are attended separately; 1 where it is not cut."""
    num_queries: int
    """Queries of a window, or of the input."""
    num_keys: int
    """Keys of a window, or of the input."""
    num_global: int
    """Elements that a head's matrix would have if every token of the grid saw every other; of the finer grid,
    where queries and keys have different ones, and of a cross-attention as computed."""

    @property
    def num_elements(self) -> int:
        """Elements of the matrices of one head, as computed, with padding."""
        return self.num_windows * self.num_queries * self.num_keys


class ForwardCost(NamedTuple):
    """What a forward pass costs."""

    parts: dict[str, PartCost]
    """By the name of the part; what is done outside of all parts stands under the empty name."""
    peak_bytes: int
    """The most bytes that weights, buffers, input and intermediate results take at one time."""
    attention: list[AttentionSize]
    """Of each layer with attention, in the order in which they run."""


def count_parameters(build: Callable[[], nn.Module]) -> int:
    """Return the number of parameters of a model that is never filled with values."""
    # A collection looks through all of torch, and a model's construction causes several.
    collects = gc.isenabled()
    gc.disable()
    try:
        with _Unfilled():
            return sum(parameter.numel() for parameter in build().parameters())
    finally:
        if collects:
            gc.enable()


def count_forward(
    model: nn.Module, inputs: Tensor | tuple[Tensor, ...], parts: Mapping[str, list[nn.Module]]
) -> ForwardCost:
    """Count what a model does with its inputs; both on the meta device.

    A fused attention writes its result and never its weights, as the kernels do that a model runs with. The
    memory is an estimate by following every tensor from its making to its end: what kernels take for
    themselves comes on top.

    Args:
        model: in evaluation mode.
        inputs: what it is given, in order.
        parts: the modules that stand under one name each, none inside another.
    """
    meter = _Meter()
    given = inputs if isinstance(inputs, tuple) else (inputs,)
    for tensor in [*model.parameters(), *model.buffers(), *given]:
        meter.follow(tensor)
    sizes: list[AttentionSize] = []
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(_tapped(model, sizes))
        for name, modules in parts.items():
            for module in modules:
                stack.enter_context(_named(module, name, meter))
        stack.enter_context(meter)
        stack.enter_context(_Fused(meter))
        model(*given)
    return ForwardCost(meter.parts, meter.peak_bytes, sizes)


def feature_shapes(model: nn.Module, images: Tensor) -> list[torch.Size]:
    """Return the shape of each map that a model's ``features`` gives; both on the meta device."""
    with torch.no_grad(), _Fused(_Meter()):
        return [each.shape for each in model.features(images)]  # type: ignore[operator]


class _Unfilled(TorchFunctionMode):
    """Make new tensors without memory, and leave them unfilled.

    Tables of indices, which are small, are computed where they would be: on the meta device, torch computes
    each shape in Python, which takes far longer than the values.
    """

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if function in FILLED:
            return function(*args, **{**kwargs, "device": kwargs.get("device") or "meta"})
        name = getattr(function, "__name__", "")
        if name.endswith("_") and not name.endswith("__") and name != "requires_grad_":
            tensor = args[0] if args else kwargs["tensor"]  # as torch.nn.init names it
            if tensor.is_meta:
                return tensor
        return function(*args, **kwargs)


class _Meter(TorchDispatchMode):
    """Count operations and follow the memory of every tensor that one makes."""

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

    def add(self, macs: int, activations: int) -> None:
        """Add to the part that runs now."""
        self.parts[self.part] = self.parts.get(self.part, PartCost()).plus(macs, activations)

    def follow(self, tensor: Tensor) -> None:
        """Count the memory of a tensor until its end, unless it is a view of one that is counted."""
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
    """Let attention and recurrent layers be single operations, as their kernels are; meta has many steps."""

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
        shapes = (query.shape, key.shape, value.shape)
        macs = sdpa_flop_count(*shapes) // 2
        self.meter.add(macs, out.numel())
        return out

    def _read(
        self, x: Tensor, states: Sequence[Tensor], weights: list[Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        steps = math.prod(x.shape[:-1])
        out = x.new_empty(*x.shape[:-1], states[0].shape[0] * states[0].shape[-1])
        self.meter.add(steps * sum(w.numel() for w in weights if w.ndim == 2), out.numel())
        return out, torch.empty_like(states[0]), torch.empty_like(states[1])


class _SizeTap:
    """The tap of one layer: note the size of its attention."""

    def __init__(self, layer: str, sizes: list[AttentionSize]) -> None:
        self.layer, self.sizes = layer, sizes

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        *,
        bias: Tensor | None,
        may_attend: Tensor | None,
        scale: float | None,
        kind: str,
        places: Places | None,
    ) -> None:
        self._note(query.shape[1], query.shape[-2], key.shape[-2], kind, places)

    def take_weights(self, weights: Tensor, *, kind: str, places: Places | None) -> None:
        self._note(weights.shape[1], weights.shape[-2], weights.shape[-1], kind, places)

    def take_result(self, value: Tensor, result: Tensor) -> None:
        """Leave alone what was averaged: its size is known."""

    def _note(
        self, num_heads: int, num_queries: int, num_keys: int, kind: str, places: Places | None
    ) -> None:
        num_windows = 1
        num_global = num_queries * num_keys if kind == "cross" else max(num_queries, num_keys) ** 2
        if places is not None and places.windows is not None:
            num_windows = len(places.windows[0])
            if places.queries is not None:
                num_global = (places.queries[0] * places.queries[1]) ** 2
        self.sizes.append(
            AttentionSize(self.layer, num_heads, num_windows, num_queries, num_keys, num_global)
        )


@contextmanager
def _tapped(model: nn.Module, sizes: list[AttentionSize]) -> Iterator[None]:
    """Note the sizes of all attention inside the block."""
    layers = [(name, module) for name, module in model.named_modules() if hasattr(module, "tap")]
    for name, module in layers:
        module.tap = _SizeTap(name, sizes)
    try:
        yield
    finally:
        for _, module in layers:
            module.tap = None


@contextmanager
def _named(module: nn.Module, name: str, meter: _Meter) -> Iterator[None]:
    """Let the meter know while a module runs."""

    def begin(*_: object) -> None:
        meter.part = name

    def end(*_: object) -> None:
        meter.part = ""

    handles = [module.register_forward_pre_hook(begin), module.register_forward_hook(end)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
