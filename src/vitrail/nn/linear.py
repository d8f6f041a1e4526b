"""The linear layer, of which a part can be asked for."""

from __future__ import annotations

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn


class Linear(nn.Linear):
    """A linear layer that can multiply by some of its rows alone."""

    def part(
        self, x: Float[Tensor, "*batch in_dim"], start: int, stop: int
    ) -> Float[Tensor, "*batch part_dim"]:
        """Return only the outputs from one on up to another, ``stop`` not among them."""
        return F.linear(x, self.weight[start:stop], None if self.bias is None else self.bias[start:stop])
