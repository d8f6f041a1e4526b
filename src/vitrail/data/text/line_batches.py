"""Batch sentences of similar length, from possibly endless lines."""

from __future__ import annotations

from collections.abc import Iterator

from vitrail.core.errors import DataError
from vitrail.data.text.input_lines import MAX_READ_CHARACTERS, ArrivingLines, Line


def plan_batches(rows: dict[int, list[int]], batch_tokens: int) -> list[list[int]]:
    """Group rows of similar length into batches; the batch with the first row comes first.

    Args:
        rows: subwords by the index of their line.
        batch_tokens: subwords of a batch, including padding and ends; a longer row is a batch of its own.

    Returns:
        The line indices of each batch.
    """
    batches: list[list[int]] = []
    longest = 0
    for place in sorted(rows, key=lambda place: (-len(rows[place]), place)):
        # The first row of a batch is its longest.
        if not batches or (len(batches[-1]) + 1) * longest > batch_tokens:
            batches.append([])
            longest = len(rows[place]) + 1
        batches[-1].append(place)
    return sorted(batches, key=min)


def read_chunks(lines: Iterator[Line], count: int) -> Iterator[list[Line]]:
    """Yield lists of up to ``count`` lines; of arriving lines, those that are there once one is.

    If reading fails, those that were read come before the error.
    """
    chunk: list[Line] = []
    num_characters = 0
    try:
        for line in lines:
            chunk.append(line)
            num_characters += len(str(line))
            is_full = len(chunk) == count or num_characters >= MAX_READ_CHARACTERS
            if is_full or (isinstance(lines, ArrivingLines) and not lines.is_waiting):
                yield chunk
                chunk, num_characters = [], 0
    except DataError:
        if chunk:
            yield chunk
        raise
    if chunk:
        yield chunk
