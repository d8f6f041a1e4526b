"""Greedy and beam search, for any model with ``step``."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, NamedTuple, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from vitrail.core.errors import ConfigError
from vitrail.models.contract import DecoderState, SequenceModel


class Hypothesis(NamedTuple):
    """One candidate output sequence."""

    tokens: tuple[int, ...]
    """Output tokens, without begin and end."""
    log_probability: float
    """Sum over the tokens and the end token, if any; natural logarithm, at most 0."""
    score: float
    """``log_probability / penalty_of(length)``; the length counts the end token."""
    is_finished: bool
    """Whether it ended with the end token, not at its maximum length."""


PenaltyForm = Literal["power", "gnmt"]
Length = TypeVar("Length", float, Tensor)


def penalty_of(length: Length, exponent: float, form: PenaltyForm = "power") -> Length:
    """Return the length penalty, which log-probabilities are divided by: ``length ** exponent``, or GNMT's.

    Paper: Wu et al. 2016, equation 14, for ``gnmt``.

    >>> penalty_of(7, 2.0), penalty_of(7, 2.0, "gnmt")
    (49.0, 4.0)
    """
    return ((5 + length) / 6 if form == "gnmt" else length) ** exponent


KEPT_SHARE = 0.875  # finished sentences leave the batch once no more than this share is unfinished
BLOCK = 16  # tokens per block in the coarse pass; 8 to 64 measured, for 4,000 to 32,000 tokens


class Ranked(NamedTuple):
    """The most likely continuations of each sentence, best first."""

    totals: Float[Tensor, "sentences ranked"]
    """Log-probability including the token."""
    parents: Int[Tensor, "sentences ranked"]
    """Index in the beam of the hypothesis that is continued."""
    tokens: Int[Tensor, "sentences ranked"]
    """The next token."""


def rank(
    logits: Float[Tensor, "rows vocabulary"],
    totals: Float[Tensor, "sentences beam"],
    num_ranked: int,
    excluded: Int[Tensor, " excluded"],
) -> Ranked:
    """Return the most likely continuations over all hypotheses of each sentence.

    Where there are fewer than ``num_ranked``, the rest has minus infinity.

    Args:
        totals: log-probability of each hypothesis.
        num_ranked: continuations per sentence.
        excluded: tokens that are never written.
    """
    vocabulary = logits.shape[1]
    gains = log_probabilities(logits, excluded)
    candidates = _narrow(gains, totals, num_ranked)
    joined = totals.gather(1, candidates // vocabulary) + gains.view(len(totals), -1).gather(1, candidates)
    best, order = joined.topk(min(num_ranked, joined.shape[1]), dim=1)
    candidates = candidates.gather(1, order)
    if candidates.shape[1] < num_ranked:  # at the first step, with a small vocabulary
        missing = (0, num_ranked - candidates.shape[1])
        best, candidates = F.pad(best, missing, value=-math.inf), F.pad(candidates, missing)
    return Ranked(best, candidates // vocabulary, candidates % vocabulary)


def log_probabilities(
    logits: Float[Tensor, "rows vocabulary"], excluded: Int[Tensor, " excluded"]
) -> Float[Tensor, "rows vocabulary"]:
    """Return the log-probability of each token, minus infinity for excluded ones.

    The distribution is not renormalised: excluded tokens keep their probability mass, as in training.
    """
    # A new tensor, so it can be modified in place.
    return logits.float().log_softmax(dim=1).index_fill_(1, excluded, -math.inf)


def likeliest(gains: Float[Tensor, "rows vocabulary"]) -> tuple[Float[Tensor, " rows"], Int[Tensor, " rows"]]:
    """Return the maximum of each row, and its token.

    Maxima without indices take a tenth of the time, so indices are only searched within the best block.
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
    """Return candidates that include the best continuations, as ``beam * vocabulary + token``.

    The best n tokens lie in the n blocks with the highest maxima. Maxima take a fraction of the time of
    top-k, which then runs over one number per block.
    """
    (num_sentences, beam_size), vocabulary, device = totals.shape, gains.shape[1], gains.device
    if vocabulary < BLOCK:
        return torch.arange(beam_size * vocabulary, device=device).expand(num_sentences, -1)
    per_row = vocabulary // BLOCK  # blocks; token t is in block t % per_row
    blocked = per_row * BLOCK  # tokens in blocks; the few after them are in none
    blocks = gains[:, :blocked].unflatten(1, (BLOCK, per_row)).amax(dim=1)  # rows blocks
    highest = (totals[:, :, None] + blocks.unflatten(0, (num_sentences, -1))).flatten(1)
    best = highest.topk(min(num_ranked, highest.shape[1]), dim=1).indices
    firsts = best // per_row * vocabulary + best % per_row
    candidates = (firsts[:, :, None] + torch.arange(0, blocked, per_row, device=device)).flatten(1)
    rows = torch.arange(0, beam_size * vocabulary, vocabulary, device=device)
    rest = (rows[:, None] + torch.arange(blocked, vocabulary, device=device)).flatten()
    return torch.cat((candidates, rest.expand(num_sentences, -1)), dim=1)


def are_few(kept: Tensor, rows: Tensor) -> bool:
    """Tell whether enough sentences are finished to drop them, which copies the state of the others."""
    return len(kept) <= KEPT_SHARE * len(rows)


def excluded_tokens(
    begin_id: int, pad_id: int | None, end_id: int, device: torch.device
) -> Int[Tensor, " excluded"]:
    """Return the tokens that are never written; some models begin with the end token."""
    numbers = {number for number in (begin_id, pad_id) if number is not None and number != end_id}
    return torch.tensor(sorted(numbers), dtype=torch.long, device=device)


def longest(max_lengths: Int[Tensor, " sentences"]) -> int:
    """Return the greatest length, 0 of none."""
    return int(max_lengths.max()) if len(max_lengths) else 0


@torch.no_grad()
def greedy(
    model: SequenceModel,
    state: DecoderState,
    *,
    begin_id: int,
    end_id: int,
    max_lengths: Int[Tensor, " sentences"],
    length_penalty: float = 1.0,
    penalty_form: PenaltyForm = "power",
    pad_id: int | None = None,
) -> list[Hypothesis]:
    """Decode greedily; return one hypothesis per sentence.

    Args:
        model: in evaluation mode.
        state: before the first step, one row per sentence.
        begin_id: first input token; it is never written.
        max_lengths: per sentence, end token included, at least 1; on the model's device.
        length_penalty, penalty_form: of the score, as for ``penalty_of``.
        pad_id: another token that is never written.
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
    found = []
    for row, limit, total in rows:
        is_finished = end_id in row[:limit]
        text = row[: row.index(end_id)] if is_finished else row[:limit]
        score = total / penalty_of(len(text) + is_finished, length_penalty, penalty_form)
        found.append(Hypothesis(tuple(text), total, score, is_finished))
    return found


USUAL_PATIENCE = 1.0  # of ``beam_search``: the rule of most toolkits, used for published scores


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
    penalty_form: PenaltyForm = "power",
    num_best: int = 1,
    patience: float = math.inf,
    pad_id: int | None = None,
    on_step: Callable[[list[Hypothesis]], None] | None = None,
) -> list[list[Hypothesis]]:
    """Beam search: follow the best ``beam_size`` hypotheses of each sentence, and return the best finished
    ones.

    At every step the continuations of a sentence's live hypotheses are ranked by log-probability. Those among
    the first ``beam_size`` that end are finished; the first ``beam_size`` that do not end live on. A sentence
    stops when no live hypothesis can still be among its ``num_best``, by an exact rule. Live hypotheses at
    their maximum length are returned unfinished, after the finished ones, where those are too few. A beam of
    one is ``greedy``.

    Args:
        model, state, begin_id, end_id, max_lengths, pad_id: as for ``greedy``.
        length_penalty, penalty_form: as for ``penalty_of``; an exponent of 0 prefers short hypotheses.
        num_best: hypotheses returned per sentence, best first; at most ``beam_size``.
        patience: a sentence also stops when ``patience * beam_size`` of its hypotheses, and no fewer than
            ``num_best``, have finished; 1 is the rule of most toolkits, infinity the exact rule alone.
        on_step: called after each step with the live hypotheses of a single sentence, best first, and the
            finished ones that would be returned; not called with a beam of one.

    Raises:
        ConfigError: the beam size, ``num_best`` or the patience does not fit.

    Paper: Kasai et al. 2024, A Call for Clarity in Beam Search (the patience factor).
    """
    _check_settings(beam_size, num_best, patience)
    if beam_size == 1:
        found = greedy(
            model,
            state,
            begin_id=begin_id,
            end_id=end_id,
            max_lengths=max_lengths,
            length_penalty=length_penalty,
            penalty_form=penalty_form,
            pad_id=pad_id,
        )
        return [[hypothesis] for hypothesis in found]
    assert state.num_rows == len(max_lengths), "one row for each sentence"
    assert on_step is None or len(max_lengths) == 1, "the beam of one sentence can be watched"
    device, penalty = max_lengths.device, (length_penalty, penalty_form)
    excluded = excluded_tokens(begin_id, pad_id, end_id, device)
    sentences = torch.arange(len(max_lengths), device=device)
    first = torch.full_like(sentences, begin_id)[:, None, None]  # one empty hypothesis per sentence
    beam = _Beam(sentences, max_lengths, first, torch.zeros(len(sentences), 1, device=device))
    enough = max(patience * beam_size, num_best)
    finished = _Finished(len(sentences), num_best=num_best, enough=enough, penalty=penalty, device=device)
    for length in range(1, longest(max_lengths) + 1):
        logits, state = model.step(beam.tokens[:, :, -1].flatten(), state)
        ranked = rank(logits, beam.totals, 2 * beam_size, excluded)
        finished.add(beam, ranked, ranked.tokens[:, :beam_size] == end_id, length)
        beam, parents = _go_on(beam, ranked, end_id, beam_size)
        is_cut = beam.limits == length
        if on_step is not None:
            on_step([*finished.live(beam, 0, length), *finished.hypotheses[0]])
        finished.add_cut(beam, is_cut, length)
        is_done = finished.are_settled(beam, length) | is_cut
        kept = (~is_done).nonzero()[:, 0]
        if not len(kept):
            break
        if are_few(kept, beam.sentences):
            state = state.keep(kept)
            beam, parents = _Beam(*(part[kept] for part in beam)), parents[kept]
        else:  # without a hypothesis, so that nothing more is added
            beam.totals[is_done] = -math.inf
        if length == 1:  # the hypotheses of a sentence are still identical
            state = state.expand(beam_size)
        else:
            firsts = torch.arange(0, parents.numel(), beam_size, device=device)
            state = state.select((firsts[:, None] + parents).flatten())
    return finished.hypotheses


class _Beam(NamedTuple):
    """The live hypotheses of unfinished sentences, best first."""

    sentences: Int[Tensor, " sentences"]
    """Index of each sentence in the batch."""
    limits: Int[Tensor, " sentences"]
    """Maximum length of each."""
    tokens: Int[Tensor, "sentences beam tokens"]
    """Tokens so far, begin included."""
    totals: Float[Tensor, "sentences beam"]
    """Log-probability; minus infinity where there are fewer hypotheses."""


class _Finished:
    """The best finished hypotheses of every sentence so far."""

    def __init__(
        self,
        num_sentences: int,
        *,
        num_best: int,
        enough: float,
        penalty: tuple[float, PenaltyForm],
        device: torch.device,
    ) -> None:
        self.hypotheses: list[list[Hypothesis]] = [[] for _ in range(num_sentences)]
        self.num_best, self.enough, self.penalty = num_best, enough, penalty
        self.counts = torch.zeros(num_sentences, dtype=torch.long, device=device)
        # The score to beat: that of the worst hypothesis kept, once there are as many as wanted.
        self.worst = torch.full((num_sentences,), -math.inf, device=device)

    def add(
        self, beam: _Beam, ranked: Ranked, has_ended: Bool[Tensor, "sentences beam"], length: int
    ) -> None:
        """Add continuations that end, if they are among the best of their sentence."""
        if not bool(has_ended.any()):
            return
        totals = ranked.totals[:, : has_ended.shape[1]]
        self.counts[beam.sentences] += (has_ended & (totals > -math.inf)).sum(dim=1)
        scores = totals / penalty_of(length, *self.penalty)
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
        """Fill up with live hypotheses where the maximum length is reached before enough have finished."""
        for row in is_cut.nonzero()[:, 0].tolist():
            best = self.hypotheses[int(beam.sentences[row])]
            best += self.live(beam, row, length)[: self.num_best - len(best)]

    def live(self, beam: _Beam, row: int, length: int) -> list[Hypothesis]:
        """Return the live hypotheses of a sentence, best first."""
        penalty = penalty_of(length, *self.penalty)
        lives = zip(beam.tokens[row, :, 1:].tolist(), beam.totals[row].tolist(), strict=True)
        return [
            Hypothesis(tuple(text), total, total / penalty, is_finished=False)
            for text, total in lives
            if total != -math.inf
        ]

    def are_settled(self, beam: _Beam, length: int) -> Bool[Tensor, " sentences"]:
        """Tell which sentences no live hypothesis can improve, or have enough finished ones."""
        lengths = beam.limits if self.penalty[0] > 0 else torch.full_like(beam.limits, length + 1)
        attainable = beam.totals[:, 0] / penalty_of(lengths.float(), *self.penalty)
        is_enough = self.counts[beam.sentences] >= self.enough
        return (attainable <= self.worst[beam.sentences]) | is_enough


def _go_on(
    beam: _Beam, ranked: Ranked, end_id: int, beam_size: int
) -> tuple[_Beam, Int[Tensor, "sentences beam"]]:
    """Return the beam of the best continuations that do not end, and the parent of each."""
    has_ended = ranked.tokens == end_id
    totals, order = ranked.totals.masked_fill(has_ended, -math.inf).topk(beam_size, dim=1)
    parents, newest = ranked.parents.gather(1, order), ranked.tokens.gather(1, order)
    history = beam.tokens.gather(1, parents[:, :, None].expand(-1, -1, beam.tokens.shape[2]))
    tokens = torch.cat((history, newest[:, :, None]), dim=2)  # sentences beam tokens+1
    return beam._replace(tokens=tokens, totals=totals), parents


def _check_settings(beam_size: int, num_best: int, patience: float) -> None:
    if beam_size < 1:
        given, expected = f"the beam holds {beam_size} hypotheses", "at least 1, which is greedy decoding"
        remedy = "Choose a larger beam; 5 is usual"
    elif not 1 <= num_best <= beam_size:
        given = f"the best {num_best} hypotheses were asked of a beam of {beam_size}"
        expected, remedy = "1 to the size of the beam", "Ask for fewer, or widen the beam"
    elif not patience > 0:
        given, expected = f"the patience is {patience}", "a factor above 0 of the beam"
        remedy = "Leave it out, or set it to 1"
    else:
        return
    raise ConfigError(given, expected=expected, remedy=remedy)
