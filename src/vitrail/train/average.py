"""Weight averaging over steps (EMA, tail average)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from vitrail.train.processes import own_part


def averaging_weight(step: int, horizon: float) -> float:
    """Return the weight of the newest weights in the moving average after ``step`` steps (at least 1).

    ``max(1 / horizon, 10 / (9 + step))``: early averages look back over a tenth of the steps done, so
    that they are not stuck at the initial weights; later ones over ``horizon`` steps.

    >>> averaging_weight(1, horizon=50)
    1.0
    >>> averaging_weight(10_000, horizon=50)
    0.02
    """
    return max(1 / max(horizon, 1.0), 10 / (9 + step))


def uniform_weight(num_averaged: int) -> float:
    """Return the weight of the newest weights in the uniform average over ``num_averaged`` steps.

    >>> [uniform_weight(num_averaged) for num_averaged in (0, 1, 2, 4)]
    [1.0, 1.0, 0.5, 0.25]

    Paper: Polyak and Juditsky 1992, the average of the iterates, updated with each.
    """
    return 1 / max(num_averaged, 1)


class WeightAverage:
    """Averaged copies of the trainable parameters; buffers are not averaged.

    Args:
        model: already on its device and, if applicable, sharded; each process averages its own shard.
    """

    def __init__(self, model: nn.Module) -> None:
        trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
        self._whole = {name: parameter.detach().clone() for name, parameter in trained.items()}
        self._weights = [own_part(parameter.detach()) for parameter in trained.values()]
        self._averages = [own_part(average) for average in self._whole.values()]

    @torch.no_grad()
    def update(self, weight: float) -> None:
        """Move every average towards its parameter by the given fraction."""
        torch._foreach_lerp_(self._averages, self._weights, weight)

    def tensors(self) -> dict[str, Tensor]:
        """Return the averages by parameter name; they are not copies."""
        return dict(self._whole)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Swap weights and averages within the block."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    def settle(self) -> None:
        """Replace the weights by their averages for good."""
        self._exchange()

    @torch.no_grad()
    def _exchange(self) -> None:
        for weight, average in zip(self._weights, self._averages, strict=True):
            kept: Tensor = weight.clone()
            weight.copy_(average)
            average.copy_(kept)
