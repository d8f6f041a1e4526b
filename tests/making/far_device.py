"""A second device for machines that have none: tensors that say they are elsewhere, and compute on the CPU.

As on a GPU, a tensor of this device and one of the CPU cannot be used together, and reading a value waits.
What is copied and what waits is noted. Autograd, optimisers and modules work as on any device.
"""

from __future__ import annotations

import traceback
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

NAME = "far"
COPIES = ("aten::_to_copy", "aten::copy_", "aten::_copy_from")
WAITS = (
    "aten::_local_scalar_dense",
    "aten::nonzero",
    "aten::masked_select",
    "aten::equal",
    "aten::is_nonzero",
    "aten::_unique2",
)
INDEXING = ("aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_")


class FarTensor(Tensor):
    """A tensor of the other device; ``near`` holds its values."""

    near: Tensor

    @staticmethod
    def __new__(cls, near: Tensor) -> FarTensor:
        made: FarTensor = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            near.shape,
            strides=near.stride(),
            storage_offset=near.storage_offset(),
            dtype=near.dtype,
            device=torch.device(NAME, 0),
        )
        made.near = near
        return made

    def __repr__(self, *_: object, **__: object) -> str:
        return f"Far({self.near})"

    def tolist(self) -> Any:
        Log.note(Log.waits, "tolist")
        return self.near.tolist()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(func, args, kwargs or {})


class Log:
    """What was copied from one device to the other, and what waited, with the line that asked for it."""

    copies: ClassVar[list[str]] = []
    waits: ClassVar[list[str]] = []

    @classmethod
    def clear(cls) -> None:
        cls.copies.clear()
        cls.waits.clear()

    @classmethod
    def note(cls, kind: list[str], name: str) -> None:
        lines = [each for each in traceback.extract_stack() if "/src/vitrail/" in each.filename]
        where = f" at {lines[-1].filename.rpartition('/vitrail/')[2]}:{lines[-1].lineno}" if lines else ""
        kind.append(f"{name}{where}")


def compute(func: Any, args: Any, kwargs: Any) -> Any:
    """Run an operator on the values of its tensors, and return tensors of their device."""
    name = func._schema.name
    given = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
    far = [each for each in given if isinstance(each, FarTensor)]
    target = kwargs.get("device")
    goes_far = target is not None and torch.device(target).type == NAME
    comes_near = target is not None and torch.device(target).type == "cpu"
    if name == "aten::_fused_sdp_choice":
        return 0  # the plain implementation, which is made of operators
    near = [each for each in given if not isinstance(each, FarTensor)]
    if far and name in WAITS:
        Log.note(Log.waits, name)
    if name in COPIES:
        crosses = (far and near) or (near and goes_far) or (far and comes_near)
        if crosses:
            Log.note(Log.copies, name)
    elif far and any(each.dim() > 0 for each in near):
        if name not in INDEXING:
            raise RuntimeError(f"Expected all tensors to be on the same device: {name} of {NAME}:0 and cpu")
        Log.note(Log.copies, name)
    elif far and name in INDEXING and any(each.dtype == torch.bool for each in given[1:]):
        Log.note(Log.waits, name)
    owner = {id(each.near): each for each in far}

    def inside(value: Any) -> Any:
        if isinstance(value, FarTensor):
            return value.near
        if isinstance(value, torch.device) and value.type == NAME:
            return torch.device("cpu")
        return value

    result = func(*tree_map(inside, args), **tree_map(inside, kwargs))
    if name == "aten::_local_scalar_dense" or (comes_near and name != "aten::copy_"):
        return result
    is_far = goes_far or (bool(far) and stays_far(name, args))

    def outside(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        if id(value) in owner:
            return owner[id(value)]
        return FarTensor(value) if is_far and not isinstance(value, FarTensor) else value

    return tree_map(outside, result)


def stays_far(name: str, args: Any) -> bool:
    """A copy into a tensor stays where that tensor is."""
    return not name.endswith("::copy_") or isinstance(args[0], FarTensor)


class _Factories(TorchDispatchMode):
    """Catches operators that make tensors there of nothing."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(func, args, kwargs or {})


class _Constructors(TorchFunctionMode):
    """Catches functions that make tensors there of Python's numbers, which are copied."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is Tensor.new_tensor and isinstance(args[0], FarTensor):
            kwargs = {"dtype": args[0].dtype, "device": args[0].device, **kwargs}
            func, args = torch.tensor, args[1:]
        device = kwargs.get("device")
        if (
            func in (torch.tensor, torch.as_tensor)
            and device is not None
            and torch.device(device).type == NAME
        ):
            return func(*args, **{**kwargs, "device": "cpu"}).to(device)
        return func(*args, **kwargs)


@contextmanager
def far_device() -> Iterator[torch.device]:
    """Have the device inside the block."""
    Log.clear()
    with _Factories(), _Constructors():
        yield torch.device(NAME, 0)


def _register() -> None:
    module = types.SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: True,
        current_device=lambda: 0,
        device_count=lambda: 1,
        _is_in_bad_fork=lambda: False,
        manual_seed_all=lambda seed: None,
        get_amp_supported_dtype=lambda: [torch.bfloat16, torch.float32],
    )
    setup: Callable[..., None] = backend_registration._setup_privateuseone_for_python_backend
    setup(NAME, backend_module=module)


_register()  # once, and before the first backward pass, when torch counts the devices
