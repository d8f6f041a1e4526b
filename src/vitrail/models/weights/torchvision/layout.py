"""Names in torchvision's older files: its models rename them when they load such a file, and so do we."""

from __future__ import annotations

import re
from collections.abc import Mapping

from torch import Tensor

_RENAMED = ((r"\.mlp\.linear_1\.", ".mlp.0."), (r"\.mlp\.linear_2\.", ".mlp.3."))


def from_files(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of a file under the names of torchvision's present models."""
    return {_rename(name): tensor for name, tensor in state.items()}


def _rename(name: str) -> str:
    for pattern, replacement in _RENAMED:
        name = re.sub(pattern, replacement, name)
    return name
