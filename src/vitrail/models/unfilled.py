"""Models without their values: to count parameters and to compare shapes."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

FILLED = frozenset({torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn, torch.eye})


class Unfilled(TorchFunctionMode):
    """Allocate new tensors on the meta device, and skip their initialisation.

    Small index tables are computed on their own device: on the meta device, torch computes each shape in
    Python, which takes far longer than the values.
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
