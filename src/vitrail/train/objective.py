"""What the training loop needs: batches, a loss and scores.

An objective collates samples into a batch, computes the loss of a model on it, and offers an evaluator that
accumulates scores. It may also name the score that models are chosen by (``Ranking``), name its items
(``Counting``), and choose on validation data what its final score needs (``Settling``); its evaluator may say
how it scores (``Signing``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, NamedTuple, Protocol, Self, runtime_checkable

import torch
from jaxtyping import Int
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
