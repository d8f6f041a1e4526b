"""What all batches can do: move their tensors, and tell how many samples they hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import torch
from torch import Tensor


@dataclass(frozen=True)
class TensorBatch:
    """The base of batches: a frozen dataclass of tensors, of tuples of tensors and of other things.

    Its first field has one row for each sample.
    """

    def to(self, device: torch.device) -> Self:
        """Move every tensor to a device."""
        return self._with_tensors(lambda tensor: tensor.to(device, non_blocking=True))

    def pin_memory(self) -> Self:
        """Copy every tensor to page-locked memory, from which a GPU reads without waiting."""
        return self._with_tensors(Tensor.pin_memory)

    def __len__(self) -> int:
        return len(getattr(self, fields(self)[0].name))

    def _with_tensors(self, change: Callable[[Tensor], Tensor]) -> Self:
        return replace(
            self, **{field.name: _changed(getattr(self, field.name), change) for field in fields(self)}
        )


def _changed(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_changed(each, change) for each in value))
    return value
