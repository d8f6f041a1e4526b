"""Texts as rows of subwords: between begin and end, and padded to batches."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from vitrail.core.errors import DataError
from vitrail.data.text.subwords import Subwords

ENDS = 2  # the begin and the end of a text
# Lengths are blurred before texts are grouped, so that batches differ between epochs.
# On Multi30k (en-de, 8,000 byte pairs, 4,096 tokens) 8 % of the planned tokens are padding, with 4 14 %.
LENGTH_NOISE = 2  # subwords


def bounded_row(row: Sequence[int], subwords: Subwords, max_length: int) -> list[int]:
    """Add begin and end to a text's subwords; truncate to ``max_length``, both included."""
    return [subwords.begin_id, *row[: max_length - ENDS], subwords.end_id]


def strict_rows(texts: Sequence[str], subwords: Subwords, *, max_length: int) -> list[list[int]]:
    """Return the subwords of each text between begin and end, without truncation.

    Args:
        texts: prepared as for training.
        max_length: including begin and end.

    Raises:
        DataError: a text is empty, or too long.
    """
    rows = subwords.encode(texts)
    for text, row in zip(texts, rows, strict=True):
        if not row:
            raise DataError(
                f"the text {text!r} holds no word",
                expected="texts with at least one word",
                remedy="Leave it out, or write what it is to be compared with",
            )
        if len(row) > max_length - ENDS:
            raise DataError(
                f"the text {text[:60]!r} has {len(row)} subwords",
                expected=f"at most {max_length - ENDS}, the model's max_length without begin and end",
                remedy="Shorten it",
            )
    return [bounded_row(row, subwords, max_length) for row in rows]


def join_rows(
    rows: Sequence[Sequence[int]], *, pad_id: int
) -> tuple[Int[Tensor, "texts tokens"], Int[Tensor, " texts"]]:
    """Batch rows of different lengths, padded at the end, with their lengths."""
    lengths = np.array([len(row) for row in rows], dtype=np.int64)
    padded = np.full((len(rows), lengths.max(initial=0)), pad_id, dtype=np.int64)
    padded[np.arange(padded.shape[1]) < lengths[:, None]] = [*chain.from_iterable(rows)]
    return torch.from_numpy(padded), torch.from_numpy(lengths)


def fill_batches(order: np.ndarray, lengths: np.ndarray, batch_size: int) -> list[list[int]]:
    """Divide rows, in this order, into batches of at most ``batch_size`` tokens with padding.

    Args:
        lengths: tokens of each row; a row longer than ``batch_size`` is a batch of its own.
    """
    batches: list[list[int]] = []
    longest = 0
    for index, length in zip(order.tolist(), lengths[order].tolist(), strict=True):
        longest = max(longest, length)
        if batches and longest * (len(batches[-1]) + 1) <= batch_size:
            batches[-1].append(index)
        else:
            batches.append([index])
            longest = length
    return batches
