"""What the training loop and the evaluator know of an objective, and nothing else.

An objective has three methods: ``collate`` samples into a batch, the ``loss`` of a model on a batch, and
an ``evaluator`` that accumulates scores. It may say
three things more: by which score models are chosen (``Ranking``), what its items are called (``Counting``),
and what of its final score is chosen on validation data (``Settling``); and its evaluator, how it scores
(``Signing``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol, Self, runtime_checkable

import torch
from torch import Tensor, nn


class Loss(NamedTuple):
    """A loss as sums, so that batches, accumulation and processes add up exactly."""

    total: Tensor
    """Sum of the loss over the batch's items, a differentiable float32 scalar."""
    count: Tensor  # type: ignore[assignment]
    """Number of items summed (images, boxes, tokens), a float32 scalar; where a step has none, 1 is taken."""
    parts: dict[str, Tensor]
    """Further detached sums to log, each divided by ``count`` when shown, such as ``correct``."""


@runtime_checkable
class Batch(Protocol):
    """A typed batch: a frozen dataclass of tensors that can move to a device.

    Not a NamedTuple, whose length is its number of fields.
    """

    def to(self, device: torch.device) -> Self: ...

    def __len__(self) -> int:
        """Return the number of samples."""
        ...


@runtime_checkable
class SampleSource(Protocol):
    """A finite, indexable collection of samples, safe to use from worker processes."""

    def __len__(self) -> int: ...

    def load(self, index: int, generator: torch.Generator | None) -> Any:
        """Return one sample, varied by the generator for training, as it is without one."""
        ...


@runtime_checkable
class Evaluator(Protocol):
    """Accumulates what a score needs."""

    def update(self, model: nn.Module, batch: Any) -> None:
        """Add one batch; runs under inference mode, the model in evaluation mode."""
        ...

    def state(self) -> dict[str, Tensor]:
        """Return everything collected, as tensors on the processor, to send to another process."""
        ...

    def absorb(self, state: dict[str, Tensor]) -> None:
        """Add what another process collected; a sample seen by both counts once."""
        ...

    def result(self) -> dict[str, Any]:
        """Return the few scores that are cheap enough for every validation; plain JSON values."""
        ...

    def report(self) -> tuple[dict[str, float], dict[str, Any]]:
        """Return every headline score, and the tables behind them as plain JSON values."""
        ...


@runtime_checkable
class Signing(Protocol):
    """An evaluator whose scores depend on how it scores, such as on a beam or on what counts as a word."""

    def signature(self, tables: Mapping[str, Any]) -> dict[str, str]:
        """Return what two scores must agree in to be compared, besides the data and its input.

        Args:
            tables: those that ``report`` returned.
        """
        ...


@runtime_checkable
class Objective(Protocol):
    """The meaning of a training run; the loop owns the machinery."""

    def collate(self, samples: Sequence[Any], generator: torch.Generator | None) -> Any:
        """Join samples into a batch; with a generator, apply the batch-wise augmentation of training."""
        ...

    def loss(self, model: nn.Module, batch: Any) -> Loss:
        """Run the model in training mode on a batch that is already on its device."""
        ...

    def evaluator(self) -> Evaluator:
        """Return a fresh, empty evaluator."""
        ...


@runtime_checkable
class Ranking(Protocol):
    """An objective that names the score for early stopping and for keeping the best weights."""

    @property
    def best_by(self) -> tuple[str, Literal["max", "min"]]:
        """Name of a score in the evaluator's ``result``, and whether the largest or the smallest is best."""
        ...


@runtime_checkable
class Counting(Protocol):
    """An objective whose loss counts something else than samples."""

    @property
    def unit(self) -> str:
        """What ``Loss.count`` counts, in the plural, such as ``tokens``."""
        ...


@runtime_checkable
class Settling(Protocol):
    """An objective whose final score needs a choice made on validation data (a confidence threshold)."""

    def settled(self, validated: Evaluator) -> Objective:
        """Return the objective with that choice.

        Args:
            validated: this objective's own evaluator, which has seen the validation split.
        """
        ...
