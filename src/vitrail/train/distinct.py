"""What several batches or processes showed more than once, counted once."""

from __future__ import annotations

import torch
from jaxtyping import Int
from torch import Tensor


def first_of_each(keys: Int[Tensor, " n"]) -> Int[Tensor, " kept"]:
    """Return where each distinct key stands first, in the order of rising keys.

    >>> first_of_each(torch.tensor([7, 2, 7, 3, 2])).tolist()
    [1, 3, 0]
    """
    order = keys.argsort(stable=True)
    ordered = keys[order]
    is_first = torch.ones_like(ordered, dtype=torch.bool)
    is_first[1:] = ordered[1:] != ordered[:-1]
    return order[is_first]
