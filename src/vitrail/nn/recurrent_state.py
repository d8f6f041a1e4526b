"""What a recurrent decoder remembers between two steps, of its hypotheses and of their sentences."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Self, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vitrail.nn.context import ContextMemory
from vitrail.nn.recurrent import CellState

Mask = Bool[Tensor, "batch 1 1 keys"]


class AttentionMemory(NamedTuple):
    """What attention reads of the sentences."""

    context: ContextMemory
    """Keys, and as values what the attentional vector adds of each state of the encoder."""
    may_attend: Mask
    """False for padding."""

    @property
    def num_sentences(self) -> int:
        """Number of sentences."""
        return len(self.may_attend)


class SummaryMemory(NamedTuple):
    """What a decoder without attention reads of the sentences."""

    summary: Float[Tensor, "batch hidden"]
    """The one vector."""
    share: Float[Tensor, "batch 1 hidden"]
    """What it adds to the attentional vector."""

    @property
    def num_sentences(self) -> int:
        """Number of sentences."""
        return len(self.summary)


Memory = TypeVar("Memory", AttentionMemory, SummaryMemory)


@dataclass(frozen=True)
class RecurrentState(Generic[Memory]):
    """What a recurrent decoder remembers between two steps; it meets ``DecoderState``."""

    layers: tuple[CellState, ...]
    """Of each layer, one row for each hypothesis."""
    fed: Float[Tensor, "rows hidden"] | None
    """The newest attentional vector, where the next step reads it."""
    memory: Memory
    """What depends on the sentence alone, held once for all its hypotheses."""

    @property
    def num_rows(self) -> int:
        """Number of hypotheses in all."""
        return len(self.layers[0][0])

    def expand(self, count: int) -> Self:
        """Return a state with ``count`` equal hypotheses in the place of each."""
        return self._change_rows(lambda tensor: tensor.repeat_interleave(count, dim=0))

    def select(self, rows: Int[Tensor, " rows"]) -> Self:
        """Return a state whose row ``i`` goes on from row ``rows[i]``, which is of the same sentence."""
        return self._change_rows(lambda tensor: tensor.index_select(0, rows))

    def keep(self, sentences: Int[Tensor, " kept"]) -> Self:
        """Return a state with all rows of some sentences, in that order."""
        count = self.num_rows // self.memory.num_sentences
        rows = sentences[:, None] * count + torch.arange(count, device=sentences.device)
        memory = _map_tensors(self.memory, lambda tensor: tensor.index_select(0, sentences))
        return dataclasses.replace(self.select(rows.flatten()), memory=memory)

    def _change_rows(self, change: Callable[[Tensor], Tensor]) -> Self:
        layers, fed = _map_tensors((self.layers, self.fed), change)
        return dataclasses.replace(self, layers=layers, fed=fed)


def _map_tensors(tree: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Return nested tuples with every tensor changed; None stays."""
    if tree is None or isinstance(tree, Tensor):
        return tree if tree is None else change(tree)
    parts = [_map_tensors(part, change) for part in tree]
    return type(tree)(*parts) if hasattr(tree, "_fields") else tuple(parts)
