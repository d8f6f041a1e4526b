"""Follow the best hypotheses of each sentence.

When does beam search stop? A sentence is done when the worst of its ``num_best`` finished hypotheses is at
least as good as all that can become of its live ones. That assumes nothing but that probabilities are at most
1. A live hypothesis with the log-probability L <= 0 and so many tokens can finish with no better score than

    L / max_length ** length_penalty    if the penalty is above 0, where it helps to be long,
    L / (length + 1) ** length_penalty  if it is not, where it helps to end now; the end counts,

so that stopping changes nothing of what is found. The first bound is wide, and searches with a penalty go on
for some steps in vain; ``patience`` trades the certainty for time.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vitrail.core.errors import ConfigError
from vitrail.models.contract import DecoderState, SequenceModel
from vitrail.models.decoding.greedy import greedy
from vitrail.models.decoding.hypothesis import Hypothesis
from vitrail.models.decoding.ranking import Ranked, are_few, excluded_tokens, longest, rank

USUAL_PATIENCE = 1.0  # of ``beam_search``, the rule of most toolkits; what is published was decoded with it


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

    At every step the continuations of a sentence's live hypotheses are ranked by their log-probability.
    Those among the first ``beam_size`` that end are finished; the first ``beam_size`` that do not end live
    on. A sentence stops when no live hypothesis can still be among its ``num_best``, by an exact rule: see
    the top of this file. Live hypotheses that reach their longest length are returned unfinished, behind the
    finished ones, where those are too few. A beam of one is ``greedy``.

    Args:
        model, state, begin_id, end_id, max_lengths, pad_id: as for ``greedy``.
        beam_size: live hypotheses of a sentence.
        length_penalty: exponent of the length that divides log-probabilities; 0 prefers short hypotheses.
        num_best: most hypotheses returned for a sentence, the best first; at most ``beam_size``.
        patience: a sentence also stops when ``patience * beam_size`` of its hypotheses have finished, and
            no fewer than ``num_best``; 1 is the rule of most toolkits, infinity the exact rule alone.

    Raises:
        ConfigError: the beam, the number of the best or the patience does not fit.

    Paper: Kasai et al. 2024, A Call for Clarity in Beam Search (the patience factor).
    """
    _check_settings(beam_size, num_best, patience)
    if beam_size == 1:
        found = greedy(model, state, begin_id=begin_id, end_id=end_id, max_lengths=max_lengths, pad_id=pad_id)
        return [[_rescored(hypothesis, length_penalty)] for hypothesis in found]
    assert state.num_rows == len(max_lengths), "one row for each sentence"
    finished = _Finished(
        len(max_lengths),
        num_best=num_best,
        enough=max(patience * beam_size, num_best),
        length_penalty=length_penalty,
        device=max_lengths.device,
    )
    excluded = excluded_tokens(begin_id, pad_id, end_id, max_lengths.device)
    beam = _begin(max_lengths, begin_id)
    _search(model, state, beam, finished, beam_size=beam_size, end_id=end_id, excluded=excluded)
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


class _Finished:
    """The best hypotheses of every sentence that ended so far."""

    def __init__(
        self,
        num_sentences: int,
        *,
        num_best: int,
        enough: float,
        length_penalty: float,
        device: torch.device,
    ) -> None:
        self.hypotheses: list[list[Hypothesis]] = [[] for _ in range(num_sentences)]
        self.num_best, self.enough, self.length_penalty = num_best, enough, length_penalty
        self.counts = torch.zeros(num_sentences, dtype=torch.long, device=device)
        # The score to beat: that of the worst kept one, once there are as many as wanted.
        self.worst = torch.full((num_sentences,), -math.inf, device=device)

    def add(
        self, beam: _Beam, ranked: Ranked, has_ended: Bool[Tensor, "sentences beam"], length: int
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

    def are_settled(self, beam: _Beam, length: int) -> Bool[Tensor, " sentences"]:
        """Say which sentences no live hypothesis can improve any more, or have enough that ended."""
        lengths = beam.limits if self.length_penalty > 0 else torch.full_like(beam.limits, length + 1)
        attainable = beam.totals[:, 0] / lengths.float() ** self.length_penalty
        is_enough = self.counts[beam.sentences] >= self.enough
        return (attainable <= self.worst[beam.sentences]) | is_enough


def _search(
    model: SequenceModel,
    state: DecoderState,
    beam: _Beam,
    finished: _Finished,
    *,
    beam_size: int,
    end_id: int,
    excluded: Int[Tensor, " excluded"],
) -> None:
    """Follow the hypotheses of a beam until every sentence is settled or cut."""
    for length in range(1, longest(beam.limits) + 1):
        logits, state = model.step(beam.tokens[:, :, -1].flatten(), state)
        ranked = rank(logits, beam.totals, 2 * beam_size, excluded)
        finished.add(beam, ranked, ranked.tokens[:, :beam_size] == end_id, length)
        beam, parents = _go_on(beam, ranked, end_id, beam_size)
        is_cut = beam.limits == length
        finished.add_cut(beam, is_cut, length)
        is_done = finished.are_settled(beam, length) | is_cut
        kept = (~is_done).nonzero()[:, 0]
        if not len(kept):
            break
        if are_few(kept, beam.sentences):
            state = state.keep(kept)
            beam, parents = _Beam(*(part[kept] for part in beam)), parents[kept]
        else:  # without a hypothesis, so that nothing of them is taken any more
            beam.totals[is_done] = -math.inf
        if length == 1:  # the hypotheses of a sentence are still equal
            state = state.expand(beam_size)
        else:
            firsts = torch.arange(0, parents.numel(), beam_size, device=parents.device)
            state = state.select((firsts[:, None] + parents).flatten())


def _begin(max_lengths: Int[Tensor, " sentences"], begin_id: int) -> _Beam:
    """Return the beam before the first step: one empty hypothesis for each sentence."""
    sentences = torch.arange(len(max_lengths), device=max_lengths.device)
    return _Beam(
        sentences=sentences,
        limits=max_lengths,
        tokens=torch.full_like(sentences, begin_id)[:, None, None],
        totals=torch.zeros(len(sentences), 1, device=sentences.device),
    )


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
