"""When tensor values may be read."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def can_read_values(x: Tensor) -> bool:
    """Return whether reading values neither waits for a device nor breaks a traced graph."""
    import torch

    return x.device.type == "cpu" and not torch.compiler.is_compiling()
