"""The interface between tasks and the training loop: batches, a loss and scores.

An objective collates samples into a batch, computes the loss of a model on it, and creates an evaluator that
accumulates scores. Optionally it names the score that models are selected by (``Ranking``), names its items
(``Counting``), or makes a choice on validation data that its final score needs (``Settling``); its evaluator
may describe how it scores (``Signing``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, NamedTuple, Protocol, Self, runtime_checkable

import torch
from jaxtyping import Int
from torch import Tensor, nn


class Loss(NamedTuple):
    """A loss as sums, so that batches, accumulation and processes add up exactly."""

    total: Tensor
    """Summed over the items of the batch, a differentiable float32 scalar."""
    count: Tensor  # type: ignore[assignment]
    """Number of items (images, boxes, tokens), a float32 scalar; 1 is used where a step has none."""
    parts: dict[str, Tensor]
    """Other detached sums to log, divided by ``count`` for display, such as ``correct``."""


@runtime_checkable
class Evaluator(Protocol):
    """Accumulates what the scores need."""

    def update(self, model: nn.Module, batch: Any) -> None:
        """Add one batch; called in inference mode with the model in evaluation mode."""

    def state(self) -> dict[str, Tensor]:
        """Return everything collected as CPU tensors, to send to another process."""

    def absorb(self, state: dict[str, Tensor]) -> None:
        """Merge another process's ``state``; a sample seen by both counts once."""

    def result(self) -> dict[str, Any]:
        """Return the scores that are cheap enough for every validation, as plain JSON values."""

    def report(self) -> tuple[dict[str, float], dict[str, Any]]:
        """Return the headline scores, and the tables behind them as plain JSON values."""


@runtime_checkable
class Signing(Protocol):
    """An evaluator whose scores depend on its settings, such as beam size or tokenisation."""

    def signature(self, tables: Mapping[str, Any]) -> dict[str, str]:
        """Return what must agree for two scores to be comparable, besides data and input.

        Args:
            tables: as ``report`` returned them.
        """


@runtime_checkable
class Objective(Protocol):
    """The meaning of a training run; the loop owns the machinery."""

    def collate(self, samples: Sequence[Any], generator: torch.Generator | None) -> Any:
        """Join samples into a batch; with a generator, apply batch-wise training augmentation."""

    def loss(self, model: nn.Module, batch: Any) -> Loss:
        """Compute the loss on a batch that is already on the model's device."""

    def evaluator(self) -> Evaluator:
        """Return a fresh evaluator."""


@runtime_checkable
class Ranking(Protocol):
    """An objective that names the score for early stopping and for keeping the best weights."""

    @property
    def best_by(self) -> tuple[str, Literal["max", "min"]]:
        """Name of a score in the evaluator's ``result``, and whether larger or smaller is better."""


@runtime_checkable
class Counting(Protocol):
    """An objective whose loss does not count samples."""

    @property
    def unit(self) -> str:
        """What ``Loss.count`` counts, in the plural, such as ``tokens``."""


@runtime_checkable
class Settling(Protocol):
    """An objective whose final score needs a choice on validation data (a confidence threshold)."""

    def settled(self, validated: Evaluator) -> Objective:
        """Return the objective with that choice.

        Args:
            validated: this objective's evaluator, after the validation split.
        """


@dataclass(frozen=True)
class TensorBatch:
    """Base of batches: a frozen dataclass of tensors, tuples of tensors and other values.

    The first field has one row per sample. A NamedTuple's length would be its number of fields.
    """

    def to(self, device: torch.device) -> Self:
        moved = {field.name: _moved(getattr(self, field.name), device) for field in fields(self)}
        return replace(self, **moved)

    def __len__(self) -> int:
        return len(getattr(self, fields(self)[0].name))


def _moved(value: Any, device: torch.device) -> Any:
    if isinstance(value, Tensor):
        # From memory that may be moved, a copy would wait for what the GPU has to do before.
        own = value.pin_memory() if device.type == "cuda" and value.device.type == "cpu" else value
        return own.to(device, non_blocking=True)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_moved(each, device) for each in value))
    return value


def first_of_each(keys: Int[Tensor, " n"]) -> Int[Tensor, " kept"]:
    """Return the index of the first occurrence of each distinct key, by ascending key.

    >>> first_of_each(torch.tensor([7, 2, 7, 3, 2])).tolist()
    [1, 3, 0]
    """
    order = keys.argsort(stable=True)
    ordered = keys[order]
    is_first = torch.ones_like(ordered, dtype=torch.bool)
    is_first[1:] = ordered[1:] != ordered[:-1]
    return order[is_first]
