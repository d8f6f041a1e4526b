"""The likeliest tokens of a step, without a sort of the vocabulary, and which sentences go on."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

KEPT_SHARE = 0.875  # of the sentences in the batch, above which those that are done stay in it
BLOCK = 16  # tokens of which only the best is compared at first; 8 to 64 measured, for 4,000 to 32,000 tokens


class Ranked(NamedTuple):
    """The likeliest continuations of each sentence, the best first."""

    totals: Float[Tensor, "sentences ranked"]
    """Log-probability with the token."""
    parents: Int[Tensor, "sentences ranked"]
    """Place in the beam of the hypothesis that goes on."""
    tokens: Int[Tensor, "sentences ranked"]
    """What is written next."""


def rank(
    logits: Float[Tensor, "rows vocabulary"],
    totals: Float[Tensor, "sentences beam"],
    num_ranked: int,
    excluded: Int[Tensor, " excluded"],
) -> Ranked:
    """Return the likeliest continuations of each sentence's hypotheses together.

    Where there are not so many, the rest has minus infinity.

    Args:
        logits: of what follows each hypothesis, those of a sentence one after the other.
        totals: log-probability of each hypothesis.
        num_ranked: continuations of a sentence.
        excluded: tokens that are never written.
    """
    vocabulary = logits.shape[1]
    gains = log_probabilities(logits, excluded)
    places = _narrow(gains, totals, num_ranked)
    joined = totals.gather(1, _whole(places, vocabulary)) + gains.view(len(totals), -1).gather(1, places)
    best, order = joined.topk(min(num_ranked, joined.shape[1]), dim=1)
    places = places.gather(1, order)
    if places.shape[1] < num_ranked:  # at the first step, where the vocabulary is small
        missing = (0, num_ranked - places.shape[1])
        best, places = F.pad(best, missing, value=-math.inf), F.pad(places, missing)
    return Ranked(best, _whole(places, vocabulary), places % vocabulary)


def log_probabilities(
    logits: Float[Tensor, "rows vocabulary"], excluded: Int[Tensor, " excluded"]
) -> Float[Tensor, "rows vocabulary"]:
    """Return the log-probability of each token, minus infinity where it is never written.

    What may not be written keeps its share of the probability, as it does in training.
    """
    # A new tensor, so that it may be changed.
    return logits.float().log_softmax(dim=1).index_fill_(1, excluded, -math.inf)


def likeliest(
    gains: Float[Tensor, "rows vocabulary"],
) -> tuple[Float[Tensor, " rows"], Int[Tensor, " rows"]]:
    """Return the greatest gain of each row, and its token.

    Maxima without their places take a tenth of the time, so that places are looked for in a block of tokens.
    """
    rows, vocabulary = gains.shape
    if rows == 1 or vocabulary % BLOCK:
        return gains.max(dim=1)
    blocked = gains.view(rows, BLOCK, -1)  # token t is in block t % per_row
    block = blocked.amax(dim=1).argmax(dim=1)
    best, row = blocked.gather(2, block[:, None, None].expand(-1, BLOCK, -1))[..., 0].max(dim=1)
    return best, row * blocked.shape[2] + block


def _narrow(
    gains: Float[Tensor, "rows vocabulary"], totals: Float[Tensor, "sentences beam"], num_ranked: int
) -> Int[Tensor, "sentences candidates"]:
    """Return candidates among which the best continuations are, as ``beam * vocabulary + token``.

    The best n lie in the n blocks of tokens whose own best are the highest. Maxima take a fraction of the
    time of a search for the n highest, which is left with one number for each block.
    """
    (num_sentences, beam_size), vocabulary, device = totals.shape, gains.shape[1], gains.device
    if vocabulary < BLOCK:
        return torch.arange(beam_size * vocabulary, device=device).expand(num_sentences, -1)
    per_row = vocabulary // BLOCK  # blocks; token t is in block t % per_row
    blocked = per_row * BLOCK  # tokens; the few behind them are in no block
    blocks = gains[:, :blocked].unflatten(1, (BLOCK, per_row)).amax(dim=1)  # rows blocks
    highest = (totals[:, :, None] + blocks.unflatten(0, (num_sentences, -1))).flatten(1)
    best = highest.topk(min(num_ranked, highest.shape[1]), dim=1).indices
    firsts = _whole(best, per_row) * vocabulary + best % per_row
    places = (firsts[:, :, None] + torch.arange(0, blocked, per_row, device=device)).flatten(1)
    rows = torch.arange(0, beam_size * vocabulary, vocabulary, device=device)
    rest = (rows[:, None] + torch.arange(blocked, vocabulary, device=device)).flatten()
    return torch.cat((places, rest.expand(num_sentences, -1)), dim=1)


def are_few(kept: Tensor, rows: Tensor) -> bool:
    """Tell whether enough sentences are done to take them out, which copies what is known of the others."""
    return len(kept) <= KEPT_SHARE * len(rows)


def excluded_tokens(
    begin_id: int, pad_id: int | None, end_id: int, device: torch.device
) -> Int[Tensor, " excluded"]:
    """Return the numbers that are never written; some models begin with the number that also ends."""
    numbers = {number for number in (begin_id, pad_id) if number is not None and number != end_id}
    return torch.tensor(sorted(numbers), dtype=torch.long, device=device)


def longest(max_lengths: Int[Tensor, " sentences"]) -> int:
    """Return the longest of some lengths, 0 of none."""
    return int(max_lengths.max()) if len(max_lengths) else 0


def _whole(numbers: Int[Tensor, "*shape"], divisor: int) -> Int[Tensor, "*shape"]:
    return numbers.div(divisor, rounding_mode="floor")
