"""When tensor values may be read, and operations that keep their type."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def can_read_values(x: Tensor) -> bool:
    """Return whether reading values neither waits for a device nor breaks a traced graph."""
    import torch

    return x.device.type == "cpu" and not torch.compiler.is_compiling()


def vector_of(values: Sequence[float], like: Tensor) -> Tensor:
    """Return numbers in the type and on the device of a tensor, without a copy, which a GPU waits for."""
    import torch

    return torch.stack([like.new_full((), value) for value in values])


def without_autocast(device: str) -> AbstractContextManager[object]:
    """Disable autocast; the meta device, which counts shapes, has none to disable."""
    import torch

    return torch.autocast(device, enabled=False) if torch.amp.is_autocast_available(device) else nullcontext()
