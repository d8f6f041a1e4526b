"""Key-value cache of a decoder, shared by the hypotheses of a sentence."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

FIRST_CAPACITY = 16  # tokens per hypothesis; grows by doubling


class _OpenSlots(NamedTuple):
    """The slots of one layer as views: writes to the first two are visible in the others."""

    newest_keys: Tensor
    newest_values: Tensor
    keys: Tensor
    values: Tensor


class SlotStorage:
    """Memory for the slots of all layers; caches that diverged may share it as long as none overwrites."""

    tensors: tuple[Tensor, Tensor] | None
    """Keys and values (layers sentences heads capacity dim), with spare capacity; None before the first
    token."""

    def __init__(self, num_layers: int) -> None:
        self.num_layers, self.num_filled, self.tensors = num_layers, 0, None
        self._num_open, self._opened = 0, tuple[_OpenSlots, ...]()

    def open(
        self,
        keys: Float[Tensor, "sentences heads hypotheses dim"],
        values: Float[Tensor, "sentences heads hypotheses value_dim"],
        num_slots: int,
    ) -> tuple[_OpenSlots, ...]:
        """Return for each layer the last slots, to be written, and the first ``num_slots``, to be read.

        Grows the memory where needed. The views are made once for all layers.
        """
        if self._num_open != num_slots:
            first = num_slots - keys.shape[-2]
            reserved = self._reserve(keys, values, num_slots)
            newest = (tensor[..., first:num_slots, :].unbind() for tensor in reserved)
            slots = (tensor[..., :num_slots, :].unbind() for tensor in reserved)
            self._opened = tuple(map(_OpenSlots, *newest, *slots))
            self._num_open = num_slots
        return self._opened

    def _reserve(self, keys: Tensor, values: Tensor, capacity: int) -> tuple[Tensor, Tensor]:
        if self.tensors is None or self.tensors[0].shape[-2] < capacity:
            room = max(2 * capacity, FIRST_CAPACITY * keys.shape[-2])
            shape = (self.num_layers, *keys.shape[:2], room)
            moved = keys.new_empty(*shape, keys.shape[-1]), values.new_empty(*shape, values.shape[-1])
            for new, old in zip(moved, self.tensors or (), strict=False):
                new[..., : old.shape[-2], :] = old
            self.tensors = moved
        return self.tensors

    def copy(self, num_slots: int, sentences: Int[Tensor, " kept"] | None = None) -> SlotStorage:
        """Return new memory with the first slots, of all or some sentences."""
        other = SlotStorage(self.num_layers)
        other.num_filled = num_slots
        if self.tensors is not None:
            keys, values = (
                each.clone() if sentences is None else each.index_select(1, sentences)
                for each in self.tensors
            )
            other.tensors = keys, values
        return other


@dataclass(frozen=True)
class KeyValueCache:
    """Keys and values of all hypotheses of some sentences, in every layer.

    A slot holds the keys and values of one token of one hypothesis, visible to every hypothesis of the
    sentence; ``bias`` hides the slots outside its own past. So hypotheses that continue others, as in beam
    search, exchange rows of ``bias``, and no key is moved. The hypotheses of a sentence are the queries of
    one attention, over keys that are read once for all of them.

    A cache is immutable. The next one, from ``lengthened``, is filled by ``write`` layer by layer, in memory
    that both share.
    """

    num_sentences: int
    """Unfinished sentences."""
    num_hypotheses: int
    """Hypotheses per sentence."""
    storage: SlotStorage = field(repr=False)
    slots_of_steps: tuple[int, ...] = ()
    """Slots added per sentence by each step: the number of hypotheses at that step."""
    bias: Float[Tensor, "sentences 1 hypotheses slots"] | None = None
    """0 where a slot belongs to a hypothesis' past, -inf elsewhere; None where all slots are shared."""

    @classmethod
    def empty(cls, num_sentences: int, *, num_layers: int) -> KeyValueCache:
        """Return the cache before the first token, with one hypothesis per sentence."""
        return cls(num_sentences, 1, SlotStorage(num_layers))

    @property
    def num_rows(self) -> int:
        return self.num_sentences * self.num_hypotheses

    @property
    def num_steps(self) -> int:
        """Tokens of each hypothesis."""
        return len(self.slots_of_steps)

    @cached_property
    def num_slots(self) -> int:
        """Slots of each sentence."""
        return sum(self.slots_of_steps)

    def lengthened(self, *, device: torch.device) -> KeyValueCache:
        """Return a cache with room for one more token of each hypothesis, to be filled by ``write``."""
        storage, count = self.storage, self.num_hypotheses
        if storage.num_filled != self.num_slots:  # another cache has already written after our tokens
            storage = storage.copy(self.num_slots)
        storage.num_filled += count
        bias = self.bias
        if count > 1 or bias is not None:
            shape = (self.num_sentences, 1, count)
            past = torch.zeros(*shape, self.num_slots, device=device) if bias is None else bias
            own = _own_slots(count, device).expand(*shape, count)
            bias = torch.cat((past, own), dim=-1)
        return replace(self, storage=storage, slots_of_steps=(*self.slots_of_steps, count), bias=bias)

    def write(
        self,
        layer: int,
        keys: Float[Tensor, "sentences heads hypotheses dim"],
        values: Float[Tensor, "sentences heads hypotheses value_dim"],
    ) -> tuple[Float[Tensor, "sentences heads slots dim"], Float[Tensor, "sentences heads slots value_dim"]]:
        """Store the newest tokens of one layer, and return the keys and values of all slots."""
        slots = self.storage.open(keys, values, self.num_slots)[layer]
        slots.newest_keys.copy_(keys)
        slots.newest_values.copy_(values)
        return slots.keys, slots.values

    def spread(self, steps: Float[Tensor, "*batch heads queries steps"]) -> Tensor:
        """Expand values per step, such as a bias, to the slots written in that step."""
        return steps if self.num_slots == self.num_steps else steps.index_select(-1, self._steps_of_slots)

    def expand(self, count: int) -> KeyValueCache:
        bias = None if self.bias is None else self.bias.repeat_interleave(count, dim=2)
        return replace(self, num_hypotheses=count * self.num_hypotheses, bias=bias)

    def select(self, rows: Int[Tensor, " rows"]) -> KeyValueCache:
        count = len(rows) // self.num_sentences
        if self.bias is None:  # the hypotheses are still identical
            return replace(self, num_hypotheses=count)
        by_row = self.bias.flatten(0, 2).index_select(0, rows)  # rows slots
        bias = by_row.reshape(self.num_sentences, 1, count, -1)  # sentences 1 hypotheses slots
        return replace(self, num_hypotheses=count, bias=bias)

    def keep(self, sentences: Int[Tensor, " kept"]) -> KeyValueCache:
        return replace(
            self,
            num_sentences=len(sentences),
            storage=self.storage.copy(self.num_slots, sentences),
            bias=None if self.bias is None else self.bias.index_select(0, sentences),
        )

    @cached_property
    def _steps_of_slots(self) -> Int[Tensor, " slots"]:
        steps = [step for step, count in enumerate(self.slots_of_steps) for _ in range(count)]
        assert self.storage.tensors is not None, "a step without slots"
        return torch.tensor(steps, device=self.storage.tensors[0].device)


class LayerCache(NamedTuple):
    """A cache as seen by one layer's self-attention."""

    cache: KeyValueCache
    """With room for the newest tokens."""
    layer: int

    def extend(
        self,
        query: Float[Tensor, "sentences heads hypotheses dim"],
        key: Float[Tensor, "sentences heads hypotheses dim"],
        value: Float[Tensor, "sentences heads hypotheses value_dim"],
        positions: nn.Module | None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Store the newest tokens; return their queries, all keys and values, and the scores' bias."""
        bias = self.cache.bias
        if positions is not None:
            newest, num_before = torch.stack((query, key)), self.cache.num_steps - 1
            (query, key), added = positions.place_newest(newest, num_before=num_before)  # type: ignore[operator]
            if added is not None:
                added = self.cache.spread(added)
                bias = added if bias is None else bias + added
        return query, *self.cache.write(self.layer, key, value), bias


@lru_cache(maxsize=16)
def _own_slots(count: int, device: torch.device) -> Float[Tensor, "hypotheses hypotheses"]:
    """Return the bias by which each hypothesis sees its own slot: 0 on the diagonal, else -inf."""
    with torch.inference_mode(False):  # or it could not be used outside of inference mode later
        return torch.eye(count, device=device).log()
