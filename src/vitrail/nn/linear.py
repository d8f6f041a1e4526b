"""A linear layer that can compute a slice of its outputs."""

from __future__ import annotations

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn


class Linear(nn.Linear):
    """A linear layer that can compute a slice of its outputs."""

    def part(
        self, x: Float[Tensor, "*batch in_dim"], start: int, stop: int
    ) -> Float[Tensor, "*batch part_dim"]:
        """Return the outputs ``start`` to ``stop``, exclusive."""
        return F.linear(x, self.weight[start:stop], None if self.bias is None else self.bias[start:stop])
