"""Take the likeliest token at every step."""

from __future__ import annotations

import torch
from jaxtyping import Int
from torch import Tensor

from vitrail.models.contract import DecoderState, SequenceModel
from vitrail.models.decoding.hypothesis import Hypothesis
from vitrail.models.decoding.ranking import are_few, excluded_tokens, likeliest, log_probabilities, longest


@torch.no_grad()
def greedy(
    model: SequenceModel,
    state: DecoderState,
    *,
    begin_id: int,
    end_id: int,
    max_lengths: Int[Tensor, " sentences"],
    pad_id: int | None = None,
) -> list[Hypothesis]:
    """Take the likeliest token at every step, and return one hypothesis for each sentence.

    Scores are those of a length penalty of 1: the mean log-probability of a token.

    Args:
        model: in evaluation mode.
        state: the model's, before its first step, with one row for each sentence.
        begin_id: number that the model is given first; it is never written.
        end_id: number that ends a sentence.
        max_lengths: most tokens of each sentence, its end counted, at least 1; on the model's device.
        pad_id: another number that is never written.
    """
    assert state.num_rows == len(max_lengths), "one row for each sentence"
    excluded = excluded_tokens(begin_id, pad_id, end_id, max_lengths.device)
    tokens = torch.full_like(max_lengths, begin_id)
    sentences = torch.arange(len(max_lengths), device=max_lengths.device)
    totals = torch.zeros(len(max_lengths), device=max_lengths.device)
    limits, reached = max_lengths, totals.clone()
    is_live = torch.ones_like(limits, dtype=torch.bool)
    written = max_lengths.new_full((len(max_lengths), longest(max_lengths)), end_id)
    for length in range(1, written.shape[1] + 1):
        logits, state = model.step(tokens, state)
        gains, tokens = likeliest(log_probabilities(logits, excluded))
        totals = totals + gains.where(is_live, 0)
        written[sentences, length - 1], reached[sentences] = tokens, totals
        is_live = is_live & (tokens != end_id) & (limits > length)
        kept = is_live.nonzero()[:, 0]
        if not len(kept):
            break
        if are_few(kept, tokens):
            state, is_live = state.keep(kept), is_live[kept]
            sentences, limits = sentences[kept], limits[kept]
            tokens, totals = tokens[kept], totals[kept]
    rows = zip(written.tolist(), max_lengths.tolist(), reached.tolist(), strict=True)
    return [_cut(row[:limit], end_id, total) for row, limit, total in rows]


def _cut(row: list[int], end_id: int, total: float) -> Hypothesis:
    """Return what stands before the end, if it has one."""
    is_finished = end_id in row
    tokens = row[: row.index(end_id)] if is_finished else row
    return Hypothesis(tuple(tokens), total, total / (len(tokens) + is_finished), is_finished)
