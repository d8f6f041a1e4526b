"""Learned positions in a sequence: added to the tokens, or a bias of the attention scores."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from vitrail.core.errors import DataError
from vitrail.nn.relative import TABLE_STD, spread_table
from vitrail.nn.tokens import Grid, Tokens


class LearnedPositions(nn.Module):
    """Add one learned vector per position, up to ``num_tokens`` positions.

    Paper: Gehring et al. 2017, section 3.1.
    """

    def __init__(self, num_tokens: int, dim: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.empty(num_tokens, dim))
        nn.init.normal_(self.table, std=dim**-0.5)  # Ott et al. 2019 (fairseq), published code

    def forward(self, x: Tokens, *, first: int = 0) -> Tokens:
        """Return the tokens with their positions, counted from ``first``.

        Raises:
            DataError: the sequence is longer than the table.
        """
        end = first + x.shape[1]
        if end > len(self.table):
            raise DataError(
                f"a sequence of {end} tokens for a model with positions for {len(self.table)}",
                expected=f"at most {len(self.table)} tokens",
                remedy="Shorten the sentence, build the model with a larger max_length, or choose positions "
                "without a table, such as sinusoidal",
            )
        return x + self.table[first:end].to(x.dtype)


Bias = Float[Tensor, "1 heads queries keys"]


def distance_buckets(
    relative: Int[Tensor, "*pairs"], *, num_buckets: int, max_distance: int, bidirectional: bool
) -> Int[Tensor, "*pairs"]:
    """Return the bucket of each relative position, the key's minus the query's.

    Half of a direction's buckets hold one distance each, the others logarithmic ranges up to
    ``max_distance``; the last one all beyond. If bidirectional, later keys have the upper half of the
    buckets; else they share bucket 0.

    Args:
        num_buckets: divisible by four if bidirectional, else by two.
        max_distance: from here on all distances share a bucket.
        bidirectional: whether queries see later keys.

    Paper: Raffel et al. 2020 (T5), section 2.1; the ranges are in the published code only.

    Example:
        >>> positions = torch.tensor([-100, -2, 0, 1])
        >>> distance_buckets(positions, num_buckets=8, max_distance=16, bidirectional=True).tolist()
        [3, 2, 0, 5]
    """
    offset = torch.zeros_like(relative)
    if bidirectional:
        num_buckets //= 2
        offset = num_buckets * (relative > 0)
        distance = relative.abs()
    else:
        distance = (-relative).clamp(min=0)
    num_exact = num_buckets // 2
    octaves = (distance.clamp(min=1).float() / num_exact).log() / math.log(max_distance / num_exact)
    wide = (num_exact + (octaves * (num_buckets - num_exact)).long()).clamp(max=num_buckets - 1)
    return offset + torch.where(distance < num_exact, distance, wide)


class SequenceRelativeBias(nn.Module):
    """Learn one bias for each head and ``distance_buckets`` bucket.

    Args:
        bidirectional: False for a decoder.

    Paper: Raffel et al. 2020 (T5), section 2.1.
    Departs from the paper: the scores it is added to are scaled, and every layer has a table of its own.
    """

    def __init__(
        self,
        num_heads: int,
        *,
        num_buckets: int = 32,  # Raffel et al. 2020, section 2.1, as the distance
        max_distance: int = 128,
        bidirectional: bool = True,
    ) -> None:
        super().__init__()
        self.max_distance, self.bidirectional = max_distance, bidirectional
        self.table = nn.Parameter(torch.zeros(num_buckets, num_heads))
        nn.init.trunc_normal_(self.table, std=TABLE_STD)

    def forward(self, num_queries: int, num_keys: int) -> Bias:
        """Return the bias of each pair; the queries are the last tokens of the sequence of the keys."""
        keys = torch.arange(num_keys, device=self.table.device)
        buckets = distance_buckets(
            keys - keys[num_keys - num_queries :, None],
            num_buckets=len(self.table),
            max_distance=self.max_distance,
            bidirectional=self.bidirectional,
        )
        return spread_table(self.table, buckets)

    def place(self, query: Tensor, key: Tensor, *, grid: Grid | None) -> tuple[Tensor, Tensor, Tensor]:
        return query, key, self(query.shape[-2], key.shape[-2])

    def place_newest(self, query_key: Tensor, *, num_before: int) -> tuple[Tensor, Tensor]:
        return query_key, self(1, num_before + 1)
