"""Dropout."""

from __future__ import annotations

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn


class Dropout(nn.Module):
    """In training, set values to zero at random and scale up the others; the identity otherwise.

    Paper: Srivastava et al. 2014, scaled in training instead of in testing.
    """

    def __init__(self, probability: float) -> None:
        super().__init__()
        assert 0 <= probability < 1, f"{probability} is not a probability below one"
        self.probability = probability

    def forward(self, x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """Return the values, some of them zero."""
        if self.probability == 0 or not self.training:
            return x
        return F.dropout(x, self.probability)

    def extra_repr(self) -> str:
        return f"probability={self.probability}"
