"""The state of a Transformer that writes: encoded sentences, and what is written of each."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from jaxtyping import Float, Int
from torch import Tensor

from vitrail.nn.cache import KeyValueCache
from vitrail.nn.decoder_attention import CrossMemory
from vitrail.nn.decoder_step import BlockStep
from vitrail.nn.linear import PackedLinear


@dataclass(frozen=True)
class TransformerState:
    """What a Transformer remembers between two steps."""

    steps: tuple[BlockStep, ...] = field(repr=False)
    """What takes the newest tokens through each block."""
    score: PackedLinear = field(repr=False)
    """What makes logits of the last block's tokens."""
    memories: tuple[CrossMemory, ...]
    """The encoded sentences, as the cross-attention of each block reads them."""
    source_bias: Float[Tensor, "sentences 1 1 source_tokens"] | None
    """-inf at padding, 0 elsewhere; None where there is none."""
    cache: KeyValueCache
    """What is written."""

    @property
    def num_rows(self) -> int:
        """Number of hypotheses in all."""
        return self.cache.num_rows

    def expand(self, count: int) -> TransformerState:
        """Return a state with ``count`` equal hypotheses in the place of each."""
        return replace(self, cache=self.cache.expand(count))

    def select(self, rows: Int[Tensor, " rows"]) -> TransformerState:
        """Return a state whose row ``i`` goes on from row ``rows[i]``, which is of the same sentence."""
        return replace(self, cache=self.cache.select(rows))

    def keep(self, sentences: Int[Tensor, " kept"]) -> TransformerState:
        """Return a state with all rows of some sentences, in that order."""
        memories = [
            CrossMemory(keys.index_select(0, sentences), values.index_select(0, sentences))
            for keys, values in self.memories
        ]
        bias = None if self.source_bias is None else self.source_bias.index_select(0, sentences)
        return replace(self, memories=tuple(memories), source_bias=bias, cache=self.cache.keep(sentences))
