"""Rows of all processes in each of them, with the gradients that one process would have."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor


def gather_rows(x: Float[Tensor, "rows dim"]) -> tuple[Float[Tensor, "all_rows dim"], int]:
    """Return the rows of all processes in the order of their ranks, and at which of them the own ones begin.

    Processes may have different numbers of rows. What each process makes of all rows gives gradients to the
    rows of every process: they are added up on the way back, so that a sum of losses over the processes has
    the gradients of that sum. Every process must call this, and differentiate what it made. With one process
    it returns the rows themselves.

    Args:
        x: rows of this process.
    """
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return x, 0
    own = torch.tensor([len(x)], device=x.device)
    counts = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(counts, own)
    sizes = [int(count) for count in counts]
    gathered: Tensor = _Gather.apply(x, sizes)  # type: ignore[no-untyped-call]
    return gathered, sum(sizes[: dist.get_rank()])


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Tensor, sizes: list[int]) -> Tensor:
        context.sizes = sizes
        padded = x.new_zeros(max(sizes), x.shape[1])
        padded[: len(x)] = x
        parts = [torch.empty_like(padded) for _ in sizes]
        dist.all_gather(parts, padded)
        return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        total = gradients[0].contiguous().clone()
        dist.all_reduce(total)
        return total.split(context.sizes)[dist.get_rank()], None
