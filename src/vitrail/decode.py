"""Write sentences token by token: the likeliest token at every step, or the best of several hypotheses.

Any model with ``step`` can be decoded. The vocabulary is looked at once for each step, on tensors; Python
sees a hypothesis only when it ends. Sentences that are done leave the batch.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from vitrail.errors import ConfigError
from vitrail.models.contract import DecoderState, SequenceModel


class Hypothesis(NamedTuple):
    """One way to write a sentence."""

    tokens: tuple[int, ...]
    """What was written, without begin and end."""
    log_probability: float
    """Sum over its tokens and, if it has one, its end; natural logarithm, at most 0."""
    score: float
    """``log_probability / length ** length_penalty``, where the length counts the end."""
    is_finished: bool
    """Whether it ended by itself; otherwise its longest length cut it off."""


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
    excluded = _excluded(begin_id, pad_id, end_id)
    tokens = torch.full_like(max_lengths, begin_id)
    sentences = torch.arange(len(max_lengths), device=max_lengths.device)
    totals = torch.zeros(len(max_lengths), device=max_lengths.device)
    limits = max_lengths
    written = max_lengths.new_full((len(max_lengths), _longest(max_lengths)), end_id)
    for length in range(1, written.shape[1] + 1):
        logits, state = model.step(tokens, state)
        gains, candidates = _likely_tokens(logits, 1, excluded)
        gain, best = gains.max(dim=1, keepdim=True)
        tokens = candidates.gather(1, best)[:, 0]
        written[sentences, length - 1] = tokens
        totals[sentences] += gain[:, 0]
        kept = ((tokens != end_id) & (limits > length)).nonzero()[:, 0]
        if not len(kept):
            break
        if len(kept) < len(tokens):
            state = state.keep(kept)
            sentences, limits, tokens = sentences[kept], limits[kept], tokens[kept]
    rows = zip(written.tolist(), max_lengths.tolist(), totals.tolist(), strict=True)
    return [_cut(row[:limit], end_id, total) for row, limit, total in rows]


@torch.no_grad()
def beam_search(
    model: SequenceModel,
    state: DecoderState,
    *,
    begin_id: int,
    end_id: int,
    max_lengths: Int[Tensor, " sentences"],
    beam_size: int,
    length_penalty: float = 1.0,
    num_best: int = 1,
    patience: float = math.inf,
    pad_id: int | None = None,
) -> list[list[Hypothesis]]:
    """Follow the best ``beam_size`` hypotheses of each sentence, and return the best that ended.

    At every step, the continuations of a sentence's live hypotheses are ranked by their log-probability.
    Among the first ``beam_size`` of them, those that end are finished; the first ``beam_size`` that do not
    end live on, for which twice as many are looked at. With a beam of one, this is ``greedy``.

    A sentence stops when no live hypothesis can still enter its ``num_best``. That rule is exact, and it
    assumes only that probabilities are at most 1: a hypothesis of log-probability L <= 0 can end with no
    better score than ``L / max_length ** length_penalty`` if the penalty is above 0, where being longer
    helps, and than ``L / (length + 1) ** length_penalty``, its end counted, if it is not. What would be
    found by going on to the longest length is therefore found. A live hypothesis that reaches its longest
    length is returned unfinished, after all finished ones, where they are fewer than ``num_best``.

    Args:
        model: as for ``greedy``.
        state: as for ``greedy``.
        begin_id: as for ``greedy``.
        end_id: as for ``greedy``.
        max_lengths: as for ``greedy``.
        beam_size: live hypotheses of a sentence.
        length_penalty: exponent of the length that divides log-probabilities; 0 prefers short hypotheses.
        num_best: most hypotheses returned for a sentence, the best first; at most ``beam_size``.
        patience: a sentence also stops when ``patience * beam_size`` of its hypotheses have finished, and
            no fewer than ``num_best``; 1 is the rule of most toolkits, infinity leaves the exact rule alone.
        pad_id: as for ``greedy``.

    Raises:
        ConfigError: the beam, the number of the best or the patience does not fit.

    Paper: Kasai et al. 2024, A Call for Clarity in Beam Search (the patience factor).
    """
    _check_settings(beam_size, num_best, patience)
    if beam_size == 1:
        found = greedy(model, state, begin_id=begin_id, end_id=end_id, max_lengths=max_lengths, pad_id=pad_id)
        return [[_rescored(hypothesis, length_penalty)] for hypothesis in found]
    assert state.num_rows == len(max_lengths), "one row for each sentence"
    excluded = _excluded(begin_id, pad_id, end_id)
    finished = _Finished(len(max_lengths), num_best, length_penalty, max_lengths.device)
    enough = max(patience * beam_size, num_best)
    beam = _begin(max_lengths, begin_id)
    for length in range(1, _longest(max_lengths) + 1):
        logits, state = model.step(beam.tokens[:, :, -1].flatten(), state)
        ranked = _rank(logits, beam.totals, 2 * beam_size, excluded)
        finished.add(beam, ranked, ranked.tokens[:, :beam_size] == end_id, length)
        beam, parents = _go_on(beam, ranked, end_id, beam_size)
        is_cut = beam.limits == length
        finished.add_cut(beam, is_cut, length)
        kept = (~(finished.are_settled(beam, length, enough) | is_cut)).nonzero()[:, 0]
        if not len(kept):
            break
        if len(kept) < len(beam.sentences):
            state = state.keep(kept)
            beam, parents = _Beam(*(part[kept] for part in beam)), parents[kept]
        if length == 1:
            state = state.expand(beam_size)
        else:
            firsts = torch.arange(0, parents.numel(), beam_size, device=parents.device)
            state = state.select((firsts[:, None] + parents).flatten())
    return finished.hypotheses


class _Beam(NamedTuple):
    """The live hypotheses of the sentences still in the batch, the best of a sentence first."""

    sentences: Int[Tensor, " sentences"]
    """Number of each sentence in the whole batch."""
    limits: Int[Tensor, " sentences"]
    """Longest length of each."""
    tokens: Int[Tensor, "sentences beam tokens"]
    """What was written, begin included."""
    totals: Float[Tensor, "sentences beam"]
    """Log-probability; minus infinity where there are not so many hypotheses."""


class _Ranked(NamedTuple):
    """The likeliest continuations of each sentence, the best first."""

    totals: Float[Tensor, "sentences ranked"]
    parents: Int[Tensor, "sentences ranked"]
    """Place in the beam of the hypothesis that goes on."""
    tokens: Int[Tensor, "sentences ranked"]


class _Finished:
    """The best hypotheses of every sentence that ended so far."""

    def __init__(
        self, num_sentences: int, num_best: int, length_penalty: float, device: torch.device
    ) -> None:
        self.hypotheses: list[list[Hypothesis]] = [[] for _ in range(num_sentences)]
        self.num_best = num_best
        self.length_penalty = length_penalty
        self.counts = torch.zeros(num_sentences, dtype=torch.long, device=device)
        # The score to beat: that of the worst kept one, once there are as many as wanted.
        self.worst = torch.full((num_sentences,), -math.inf, device=device)

    def add(
        self, beam: _Beam, ranked: _Ranked, has_ended: Bool[Tensor, "sentences beam"], length: int
    ) -> None:
        """Take the continuations that end, if they are among the best of their sentence."""
        if not bool(has_ended.any()):
            return
        totals = ranked.totals[:, : has_ended.shape[1]]
        self.counts[beam.sentences] += (has_ended & (totals > -math.inf)).sum(dim=1)
        scores = totals / length**self.length_penalty
        is_taken = has_ended & (scores > self.worst[beam.sentences][:, None])
        rows, columns = is_taken.nonzero().unbind(dim=1)
        sentences = beam.sentences[rows].tolist()
        texts = beam.tokens[rows, ranked.parents[rows, columns], 1:].tolist()
        values = zip(totals[rows, columns].tolist(), scores[rows, columns].tolist(), strict=True)
        for sentence, text, (total, score) in zip(sentences, texts, values, strict=True):
            self.hypotheses[sentence].append(Hypothesis(tuple(text), total, score, is_finished=True))
        for sentence in set(sentences):
            best = self.hypotheses[sentence]
            best.sort(key=lambda hypothesis: -hypothesis.score)
            del best[self.num_best :]
            if len(best) == self.num_best:
                self.worst[sentence] = best[-1].score

    def add_cut(self, beam: _Beam, is_cut: Bool[Tensor, " sentences"], length: int) -> None:
        """Fill up with live hypotheses where the longest length is reached before enough have ended."""
        for row in is_cut.nonzero()[:, 0].tolist():
            best = self.hypotheses[int(beam.sentences[row])]
            lives = zip(beam.tokens[row, :, 1:].tolist(), beam.totals[row].tolist(), strict=True)
            for text, total in lives:
                if len(best) < self.num_best and total != -math.inf:
                    score = total / length**self.length_penalty
                    best.append(Hypothesis(tuple(text), total, score, is_finished=False))

    def are_settled(self, beam: _Beam, length: int, enough: float) -> Bool[Tensor, " sentences"]:
        """Say which sentences no live hypothesis can improve any more, or have enough that ended."""
        lengths = beam.limits if self.length_penalty > 0 else torch.full_like(beam.limits, length + 1)
        attainable = beam.totals[:, 0] / lengths.float() ** self.length_penalty
        is_enough = self.counts[beam.sentences] >= enough
        return (attainable <= self.worst[beam.sentences]) | is_enough


def _begin(max_lengths: Int[Tensor, " sentences"], begin_id: int) -> _Beam:
    """Return the beam before the first step: one empty hypothesis for each sentence."""
    sentences = torch.arange(len(max_lengths), device=max_lengths.device)
    return _Beam(
        sentences=sentences,
        limits=max_lengths,
        tokens=torch.full_like(sentences, begin_id)[:, None, None],
        totals=torch.zeros(len(sentences), 1, device=sentences.device),
    )


def _rank(
    logits: Float[Tensor, "rows vocabulary"],
    totals: Float[Tensor, "sentences beam"],
    num_ranked: int,
    excluded: Collection[int],
) -> _Ranked:
    """Return the likeliest continuations of each sentence's hypotheses together."""
    gains, tokens = _likely_tokens(logits, num_ranked, excluded)
    per_row = gains.shape[1]
    joined = (totals[:, :, None] + gains.view(*totals.shape, per_row)).flatten(1)  # sentences beam*likely
    best, places = joined.topk(num_ranked, dim=1)
    parents = places.div(per_row, rounding_mode="floor")
    return _Ranked(best, parents, tokens.view_as(joined).gather(1, places))


def _go_on(
    beam: _Beam, ranked: _Ranked, end_id: int, beam_size: int
) -> tuple[_Beam, Int[Tensor, "sentences beam"]]:
    """Return the beam of the best continuations that do not end, and the parent of each."""
    has_ended = ranked.tokens == end_id
    totals, order = ranked.totals.masked_fill(has_ended, -math.inf).topk(beam_size, dim=1)
    parents, newest = ranked.parents.gather(1, order), ranked.tokens.gather(1, order)
    history = beam.tokens.gather(1, parents[:, :, None].expand(-1, -1, beam.tokens.shape[2]))
    tokens = torch.cat((history, newest[:, :, None]), dim=2)  # sentences beam tokens+1
    return beam._replace(tokens=tokens, totals=totals), parents


def _likely_tokens(
    logits: Float[Tensor, "rows vocabulary"], wanted: int, excluded: Collection[int]
) -> tuple[Float[Tensor, "rows likely"], Int[Tensor, "rows likely"]]:
    """Return log-probability and number of tokens, among them the likeliest ``wanted`` that may be written.

    The others have minus infinity. Only the candidates are normalised, not the vocabulary; what may not be
    written keeps its share of the probability, as it does in training.
    """
    logits = logits.float()
    likely = min(wanted + len(excluded), logits.shape[1])
    values, tokens = logits.topk(likely, dim=1)
    gains = values - logits.logsumexp(dim=1, keepdim=True)
    for number in excluded:
        gains = gains.masked_fill(tokens == number, -math.inf)
    if likely < wanted:  # the vocabulary is smaller
        missing = (0, wanted - likely)
        gains, tokens = F.pad(gains, missing, value=-math.inf), F.pad(tokens, missing)
    return gains, tokens


def _excluded(begin_id: int, pad_id: int | None, end_id: int) -> set[int]:
    """Return the numbers that are never written; some models begin with the number that also ends."""
    return {number for number in (begin_id, pad_id) if number is not None and number != end_id}


def _longest(max_lengths: Int[Tensor, " sentences"]) -> int:
    return int(max_lengths.max()) if len(max_lengths) else 0


def _cut(row: list[int], end_id: int, total: float) -> Hypothesis:
    """Return what stands before the end, if it has one."""
    is_finished = end_id in row
    tokens = row[: row.index(end_id)] if is_finished else row
    return Hypothesis(tuple(tokens), total, total / (len(tokens) + is_finished), is_finished)


def _rescored(hypothesis: Hypothesis, length_penalty: float) -> Hypothesis:
    length = len(hypothesis.tokens) + hypothesis.is_finished
    return hypothesis._replace(score=hypothesis.log_probability / length**length_penalty)


def _check_settings(beam_size: int, num_best: int, patience: float) -> None:
    if beam_size < 1:
        raise ConfigError(
            f"the beam holds {beam_size} hypotheses",
            expected="at least 1, which is greedy decoding",
            remedy="Choose a larger beam; 5 is usual",
        )
    if not 1 <= num_best <= beam_size:
        raise ConfigError(
            f"the best {num_best} hypotheses were asked of a beam of {beam_size}",
            expected="between 1 and the size of the beam",
            remedy="Ask for fewer, or widen the beam",
        )
    if not patience > 0:
        raise ConfigError(
            f"the patience is {patience}",
            expected="a factor above 0 of the beam",
            remedy="Leave it out, or set it to 1",
        )
