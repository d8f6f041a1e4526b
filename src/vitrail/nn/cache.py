"""What a decoder keeps of the tokens it has written: their keys and values, shared by hypotheses."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

FIRST_CAPACITY = 16  # tokens of each hypothesis; what is longer is moved to twice the room


class _OpenSlots(NamedTuple):
    """The slots of one layer as views: what is written to the first two is seen in the others."""

    newest_keys: Tensor
    newest_values: Tensor
    keys: Tensor
    values: Tensor


class SlotStorage:
    """Memory for the slots of all layers; caches that went apart may share it as long as none overwrites.

    Args:
        num_layers: layers of the decoder.
    """

    tensor: Float[Tensor, "layers 2 sentences heads capacity dim"] | None
    """Keys and values, with room for more; None before the first token."""

    def __init__(self, num_layers: int) -> None:
        self.num_layers, self.num_filled, self.tensor = num_layers, 0, None
        self._num_open, self._opened = 0, tuple[_OpenSlots, ...]()

    def open(
        self, like: Float[Tensor, "sentences heads hypotheses dim"], num_slots: int
    ) -> tuple[_OpenSlots, ...]:
        """Return for each layer the last slots, to be written, and all so many, to be read.

        Where there is not room for so many, all move to memory that has it. What is returned is made once for
        all layers.
        """
        if self._num_open != num_slots:
            tensor = self._reserve(like, num_slots)
            slots = tensor[..., :num_slots, :].flatten(0, 1).unbind()
            newest = tensor[..., num_slots - like.shape[-2] : num_slots, :].flatten(0, 1).unbind()
            parts = zip(newest[::2], newest[1::2], slots[::2], slots[1::2], strict=True)
            self._opened = tuple(_OpenSlots(*layer) for layer in parts)
            self._num_open = num_slots
        return self._opened

    def _reserve(self, like: Tensor, capacity: int) -> Tensor:
        if self.tensor is None or self.tensor.shape[-2] < capacity:
            room = max(2 * capacity, FIRST_CAPACITY * like.shape[-2])
            moved = like.new_empty(self.num_layers, 2, *like.shape[:2], room, like.shape[-1])
            if self.tensor is not None:
                moved[..., : self.tensor.shape[-2], :] = self.tensor
            self.tensor = moved
        return self.tensor

    def copy(self, num_slots: int, sentences: Int[Tensor, " kept"] | None = None) -> SlotStorage:
        """Return new memory with the first slots, of all sentences or of some."""
        other = SlotStorage(self.num_layers)
        other.num_filled = num_slots
        if self.tensor is not None:
            other.tensor = (
                self.tensor.clone() if sentences is None else self.tensor.index_select(2, sentences)
            )
        return other


@dataclass(frozen=True)
class KeyValueCache:
    """The keys and values of what the hypotheses of some sentences consist of, in every layer.

    A slot holds the keys and values of one token of one hypothesis, and every hypothesis of the sentence can
    look into it; ``bias`` hides the slots that are not of its own past. So hypotheses that go on from others,
    as in beam search, exchange rows of ``bias``, and no key is moved. The hypotheses of a sentence are the
    queries of one attention, over keys that are read once for all of them.

    A cache does not change. The next one, of ``lengthened``, is filled by ``write`` layer by layer, in memory
    that both share.
    """

    num_sentences: int
    """Sentences that are being written."""
    num_hypotheses: int
    """Hypotheses of each."""
    storage: SlotStorage = field(repr=False)
    """Where the keys and values are."""
    slots_of_steps: tuple[int, ...] = ()
    """How many slots each step has added to a sentence, one for each hypothesis that it then had."""
    bias: Float[Tensor, "sentences 1 hypotheses slots"] | None = None
    """0 where a slot is of a hypothesis' past, -inf elsewhere; None where all slots are of everyone's."""

    @classmethod
    def empty(cls, num_sentences: int, *, num_layers: int) -> KeyValueCache:
        """Return the cache before the first token, one hypothesis for each sentence."""
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
        """Return a cache with one more token of each hypothesis, which ``write`` is yet to fill."""
        storage, count = self.storage, self.num_hypotheses
        if storage.num_filled != self.num_slots:  # another cache has written its token behind ours
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
        values: Float[Tensor, "sentences heads hypotheses dim"],
    ) -> tuple[Float[Tensor, "sentences heads slots dim"], Float[Tensor, "sentences heads slots dim"]]:
        """Fill the slots of the newest tokens in one layer, and return the keys and values of all slots."""
        slots = self.storage.open(keys, self.num_slots)[layer]
        slots.newest_keys.copy_(keys)
        slots.newest_values.copy_(values)
        return slots.keys, slots.values

    def spread(self, bias: Float[Tensor, "1 heads queries steps"]) -> Float[Tensor, "1 heads queries slots"]:
        """Give each slot what a bias has for the step in which it was written."""
        return bias if self.num_slots == self.num_steps else bias.index_select(-1, self._steps_of_slots)

    def expand(self, count: int) -> KeyValueCache:
        """Return a cache with ``count`` equal hypotheses in the place of each."""
        bias = None if self.bias is None else self.bias.repeat_interleave(count, dim=2)
        return replace(self, num_hypotheses=count * self.num_hypotheses, bias=bias)

    def select(self, rows: Int[Tensor, " rows"]) -> KeyValueCache:
        count = len(rows) // self.num_sentences
        if self.bias is None:  # the hypotheses have not parted
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
        assert self.storage.tensor is not None, "a step without slots"
        return torch.tensor(steps, device=self.storage.tensor.device)


class LayerCache(NamedTuple):
    """A cache as the self-attention of one layer uses it."""

    cache: KeyValueCache
    """With room for the newest tokens."""
    layer: int
    """Index of the layer."""

    def extend(
        self,
        query: Float[Tensor, "sentences heads hypotheses dim"],
        key: Float[Tensor, "sentences heads hypotheses dim"],
        value: Float[Tensor, "sentences heads hypotheses dim"],
        positions: nn.Module | None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Keep the newest tokens; return their queries, the keys and values of all, and the scores' bias.

        Args:
            positions: the layer's ``StepwiseScheme``, if it has one.
        """
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
    """Return the bias by which each hypothesis sees one of as many slots: 0 on the diagonal, else -inf."""
    with torch.inference_mode(False):  # or it could not be used outside of that mode later
        return torch.eye(count, device=device).log()
