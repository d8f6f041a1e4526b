"""Greedy and beam search against brute force, a plain reference and transformers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Self

import pytest
import torch
from torch import Tensor

from vitrail.core.errors import ConfigError
from vitrail.models.decoding import (
    USUAL_PATIENCE,
    Hypothesis,
    beam_search,
    excluded_tokens,
    greedy,
    likeliest,
    rank,
)

PAD, BEGIN, END = 0, 1, 3
VOCABULARY = 6
WRITABLE = range(2, VOCABULARY)
PENALTIES = (-0.5, 0.0, 0.6, 1.0, 2.0)


@dataclass(frozen=True)
class TableState:
    """Remembers the token before the newest one of each hypothesis, and the table of each sentence once."""

    tables: Tensor  # sentences before last next
    before: Tensor  # sentences hypotheses
    kept: list[int] = field(default_factory=list)

    @property
    def num_rows(self) -> int:
        return self.before.numel()

    def expand(self, count: int) -> Self:
        return replace(self, before=self.before.repeat_interleave(count, dim=1))

    def select(self, rows: Tensor) -> Self:
        num_sentences, num_hypotheses = self.before.shape
        assert rows.shape == (self.num_rows,)
        of_sentence = torch.arange(num_sentences).repeat_interleave(num_hypotheses)
        assert torch.equal(rows.div(num_hypotheses, rounding_mode="floor"), of_sentence)
        return replace(self, before=self.before.flatten()[rows].view_as(self.before))

    def keep(self, sentences: Tensor) -> Self:
        assert len(sentences)
        assert sentences.tolist() == sorted(set(sentences.tolist()))
        self.kept.append(len(sentences))
        return replace(self, tables=self.tables[sentences], before=self.before[sentences])


class TableModel:
    """A Markov model of the second order, another one for each sentence."""

    def __init__(self, num_sentences: int = 1, *, seed: int = 0, spread: float = 1.5) -> None:
        generator = torch.Generator().manual_seed(seed)
        shape = (num_sentences, *[VOCABULARY] * 3)
        self.tables = spread * torch.randn(shape, generator=generator)
        self.num_rows: list[int] = []

    def start(self, sentences: slice = slice(None)) -> TableState:
        tables = self.tables[sentences]
        return TableState(tables, torch.full((len(tables), 1), PAD))

    def step(self, tokens: Tensor, state: TableState) -> tuple[Tensor, TableState]:
        assert not torch.is_grad_enabled()
        assert tokens.shape == (state.num_rows,)
        self.num_rows.append(state.num_rows)
        newest = tokens.view_as(state.before)
        logits = state.tables[torch.arange(len(newest))[:, None], state.before, newest]
        return logits.flatten(0, 1), replace(state, before=newest)

    def log_probabilities(self, sentence: int, written: tuple[int, ...]) -> list[float]:
        """Return the log-probability of every token after some tokens."""
        before, newest = (PAD, BEGIN, *written)[-2:]
        return self.tables[sentence, before, newest].double().log_softmax(0).tolist()

    def log_probability(self, sentence: int, hypothesis: Hypothesis) -> float:
        written = [*hypothesis.tokens, *([END] if hypothesis.is_finished else [])]
        return sum(
            self.log_probabilities(sentence, tuple(written[:place]))[token]
            for place, token in enumerate(written)
        )


IDS: dict[str, Any] = {"begin_id": BEGIN, "end_id": END, "pad_id": PAD}


def search(model: TableModel, limits: Tensor, *, beam_size: int, **settings: Any) -> list[list[Hypothesis]]:
    return beam_search(model, model.start(), **IDS, max_lengths=limits, beam_size=beam_size, **settings)


def all_finished(
    model: TableModel, sentence: int, max_length: int
) -> Iterator[tuple[tuple[int, ...], float]]:
    """Yield every sentence that ends within a length, and its log-probability."""
    words = [token for token in WRITABLE if token != END]
    for length in range(max_length):
        for tokens in itertools.product(words, repeat=length):
            yield tokens, model.log_probability(sentence, Hypothesis(tokens, 0.0, 0.0, is_finished=True))


def plain_beam_search(
    model: TableModel,
    sentence: int,
    *,
    max_length: int,
    beam_size: int,
    length_penalty: float,
    num_best: int,
    form: str = "power",
) -> list[tuple[tuple[int, ...], bool]]:
    """The same search in plain Python, which never stops before the longest length."""
    live: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    finished: list[tuple[float, tuple[int, ...]]] = []
    for length in range(1, max_length + 1):
        ranked = sorted(
            (
                (total + model.log_probabilities(sentence, tokens)[token], (*tokens, token))
                for total, tokens in live
                for token in WRITABLE
            ),
            reverse=True,
        )
        for total, tokens in ranked[:beam_size]:
            if tokens[-1] == END:
                base = (5 + length) / (5 + 1) if form == "gnmt" else length  # Wu et al. 2016, equation 14
                finished.append((total / base**length_penalty, tokens[:-1]))
        live = [entry for entry in ranked if entry[1][-1] != END][:beam_size]
    finished.sort(reverse=True)
    best = [(tokens, True) for _, tokens in finished] + [(tokens, False) for _, tokens in live]
    return best[:num_best]


def outcome(hypotheses: list[Hypothesis]) -> list[tuple[tuple[int, ...], bool]]:
    return [(hypothesis.tokens, hypothesis.is_finished) for hypothesis in hypotheses]


@pytest.mark.parametrize("length_penalty", PENALTIES)
def test_a_wide_beam_finds_the_best_of_all_sentences(length_penalty: float) -> None:
    model, max_length, num_best = TableModel(3, seed=1), 4, 7

    found = search(
        model, torch.full((3,), max_length), beam_size=130, length_penalty=length_penalty, num_best=num_best
    )

    for sentence, hypotheses in enumerate(found):
        scored = [
            (total / (len(tokens) + 1) ** length_penalty, tokens)
            for tokens, total in all_finished(model, sentence, max_length)
        ]
        best = sorted(scored, reverse=True)[:num_best]
        assert [hypothesis.tokens for hypothesis in hypotheses] == [tokens for _, tokens in best]
        scores = [hypothesis.score for hypothesis in hypotheses]
        assert scores == pytest.approx([score for score, _ in best], abs=1e-5)


@pytest.mark.parametrize("form", ["power", "gnmt"])
@pytest.mark.parametrize("length_penalty", PENALTIES)
@pytest.mark.parametrize(("beam_size", "num_best"), [(2, 1), (3, 3), (5, 2)])
def test_stopping_early_changes_nothing(
    beam_size: int, num_best: int, length_penalty: float, form: str
) -> None:
    num_sentences = 11
    model = TableModel(num_sentences, seed=beam_size)
    max_lengths = torch.arange(num_sentences) % 5 + 3

    settings = {"length_penalty": length_penalty, "num_best": num_best}
    found = search(model, max_lengths, beam_size=beam_size, penalty_form=form, **settings)

    expected = [
        plain_beam_search(
            model,
            sentence,
            max_length=int(max_lengths[sentence]),
            beam_size=beam_size,
            form=form,
            **settings,
        )
        for sentence in range(num_sentences)
    ]
    assert [outcome(hypotheses) for hypotheses in found] == expected


@pytest.mark.parametrize("beam_size", [1, 3])
def test_gnmt_divides_by_its_own_penalty(beam_size: int) -> None:
    model, limits = TableModel(7, seed=6), torch.arange(7) + 1
    settings = {"beam_size": beam_size, "num_best": beam_size, "length_penalty": 0.6}

    for hypotheses in search(model, limits, penalty_form="gnmt", **settings):
        for hypothesis in hypotheses:
            length = len(hypothesis.tokens) + hypothesis.is_finished
            penalty = ((5 + length) / 6) ** 0.6
            assert hypothesis.score == pytest.approx(hypothesis.log_probability / penalty)


def test_a_sentence_stops_once_no_live_hypothesis_can_win() -> None:
    model = TableModel(seed=2)
    model.tables[..., END] += 4
    limits = torch.tensor([50])

    for length_penalty in (-0.5, 0.0, 0.5):
        model.num_rows.clear()
        search(model, limits, beam_size=3, length_penalty=length_penalty)
        assert len(model.num_rows) < 10


Chances = dict[tuple[int, int], dict[int, float]]


def scripted(chances: Chances) -> TableModel:
    """Return a model of these probabilities after two tokens, and of equal ones after all others."""
    model = TableModel()
    model.tables.zero_()
    for (before, newest), row in chances.items():
        model.tables[0, before, newest] = -math.inf
        for token, chance in row.items():
            model.tables[0, before, newest, token] = math.log(chance)
    return model


ONE_WAY: Chances = {(PAD, BEGIN): {2: 1}, (BEGIN, 2): {4: 1}, (2, 4): {5: 1}, (4, 5): {END: 1}}


@pytest.mark.parametrize("num_best", [1, 6])
@pytest.mark.parametrize(("limit", "expected"), [(9, ((2, 4, 5), True)), (2, ((2, 4), False))])
def test_what_is_impossible_is_neither_found_nor_counted(
    limit: int, expected: tuple[tuple[int, ...], bool], num_best: int
) -> None:
    model = scripted(ONE_WAY)

    (found,) = search(model, torch.tensor([limit]), beam_size=6, num_best=num_best, patience=0.1)

    assert outcome(found) == [expected]
    assert len(model.num_rows) == min(limit, 4)


@pytest.mark.parametrize(
    ("length_penalty", "at_first", "then", "expected", "num_steps"),
    [
        # log(0.35) / 4 > log(0.6), though log(0.35) / 2 is not.
        (1.0, {END: 0.6, 2: 0.35, 4: 0.05}, {4: 1}, (2, 4, 5), 4),
        (0.6, {END: 0.6, 2: 0.35, 4: 0.05}, {4: 1}, (2, 4, 5), 4),
        # log(0.49) * sqrt(2) > log(0.3), though log(0.49) * sqrt(3) is not.
        (-0.5, {END: 0.3, 2: 0.49, 4: 0.21}, {END: 1}, (2,), 2),
        # log(0.41) * sqrt(2) < log(0.3), though log(0.41) is not.
        (-0.5, {END: 0.3, 2: 0.41, 4: 0.29}, {END: 1}, (), 1),
    ],
)
def test_a_sentence_goes_on_just_as_long_as_a_live_hypothesis_can_win(
    length_penalty: float,
    at_first: dict[int, float],
    then: dict[int, float],
    expected: tuple[int, ...],
    num_steps: int,
) -> None:
    model = scripted(ONE_WAY | {(PAD, BEGIN): at_first, (BEGIN, 2): then})

    (found,) = search(model, torch.tensor([9]), beam_size=2, length_penalty=length_penalty)

    assert outcome(found) == [(expected, True)]
    assert len(model.num_rows) == num_steps


def test_patience_stops_at_so_many_finished_hypotheses() -> None:
    model = TableModel(seed=3)
    model.tables[..., END] += 4
    limits = torch.tensor([50])

    def steps(patience: float) -> int:
        model.num_rows.clear()
        found = search(model, limits, beam_size=4, length_penalty=2.0, num_best=2, patience=patience)
        assert [hypothesis.is_finished for hypothesis in found[0]] == [True, True]
        return len(model.num_rows)

    assert steps(0.01) <= steps(1.0) < steps(4.0) < steps(math.inf)


@pytest.mark.parametrize("num_sentences", [1, 7])
def test_greedy_takes_the_likeliest_token(num_sentences: int) -> None:
    model = TableModel(num_sentences, seed=4)
    max_lengths = torch.arange(num_sentences) + 2

    found = greedy(model, model.start(), **IDS, max_lengths=max_lengths)

    for sentence, hypothesis in enumerate(found):
        tokens: tuple[int, ...] = ()
        while len(tokens) < max_lengths[sentence] and tokens[-1:] != (END,):
            gains = model.log_probabilities(sentence, tokens)
            tokens += (max(WRITABLE, key=lambda token: gains[token]),)
        assert hypothesis.is_finished == (tokens[-1] == END)
        assert hypothesis.tokens == tokens[: -1 if hypothesis.is_finished else None]
        total = model.log_probability(sentence, hypothesis)
        assert hypothesis.log_probability == pytest.approx(total, abs=1e-5)
        assert hypothesis.score == pytest.approx(total / len(tokens), abs=1e-5)


@pytest.mark.parametrize("length_penalty", PENALTIES)
def test_a_beam_of_one_is_greedy(length_penalty: float) -> None:
    model, max_lengths = TableModel(7, seed=5), torch.arange(7) + 1

    found = search(model, max_lengths, beam_size=1, length_penalty=length_penalty)
    expected = greedy(model, model.start(), **IDS, max_lengths=max_lengths)

    assert [outcome(hypotheses) for hypotheses in found] == [outcome([entry]) for entry in expected]
    for (hypothesis,) in found:
        length = len(hypothesis.tokens) + hypothesis.is_finished
        assert hypothesis.score == pytest.approx(hypothesis.log_probability / length**length_penalty)


def test_the_best_come_first_and_carry_their_log_probability() -> None:
    model = TableModel(5, seed=6)

    found = search(model, torch.full((5,), 9), beam_size=4, length_penalty=0.6, num_best=4)

    for sentence, hypotheses in enumerate(found):
        assert len({hypothesis.tokens for hypothesis in hypotheses}) == 4
        assert hypotheses == sorted(hypotheses, key=lambda entry: (-entry.is_finished, -entry.score))
        for hypothesis in hypotheses:
            total = model.log_probability(sentence, hypothesis)
            assert hypothesis.log_probability == pytest.approx(total, abs=1e-5)
            length = len(hypothesis.tokens) + hypothesis.is_finished
            assert hypothesis.score == pytest.approx(total / length**0.6, abs=1e-5)


@pytest.mark.parametrize("length_penalty", [0.0, 1.0])
def test_the_beam_can_be_watched(length_penalty: float) -> None:
    model = TableModel(seed=12)
    settings: dict[str, Any] = {"beam_size": 3, "length_penalty": length_penalty, "patience": 1.0}
    steps: list[list[Hypothesis]] = []

    ((watched,),) = search(model, torch.tensor([6]), on_step=steps.append, **settings)

    assert search(model, torch.tensor([6]), **settings) == [[watched]]
    live: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    for length, beam in enumerate(steps, start=1):
        ranked = sorted(
            (
                (total + model.log_probabilities(0, tokens)[token], (*tokens, token))
                for total, tokens in live
                for token in WRITABLE
                if token != END
            ),
            reverse=True,
        )
        live = ranked[:3]
        assert [each.tokens for each in beam if not each.is_finished] == [tokens for _, tokens in live]
        for each in beam:
            one = Hypothesis(each.tokens, 0.0, 0.0, each.is_finished)
            assert each.log_probability == pytest.approx(model.log_probability(0, one), abs=1e-5)
        if length > len(watched.tokens):
            assert [each.tokens for each in beam if each.is_finished] == [watched.tokens]


@pytest.mark.parametrize("num_sentences", [0, 2])
def test_the_beam_of_one_sentence_is_watched(num_sentences: int) -> None:
    with pytest.raises(AssertionError, match="one sentence"):
        search(TableModel(num_sentences), torch.full((num_sentences,), 4), beam_size=2, on_step=print)


@pytest.mark.parametrize("beam_size", [1, 3])
def test_what_never_ends_is_cut_at_its_own_longest_length(beam_size: int) -> None:
    model = TableModel(4, seed=7)
    model.tables[..., END] = -math.inf
    max_lengths = torch.tensor([3, 1, 7, 2])

    found = search(model, max_lengths, beam_size=beam_size, num_best=beam_size)

    for hypotheses, max_length in zip(found, max_lengths.tolist(), strict=True):
        assert len(hypotheses) == beam_size
        assert all(len(hypothesis.tokens) == max_length for hypothesis in hypotheses)
        assert not any(hypothesis.is_finished for hypothesis in hypotheses)
        for hypothesis in hypotheses:
            assert hypothesis.score == pytest.approx(hypothesis.log_probability / max_length)


def test_an_end_at_the_longest_length_is_no_cut() -> None:
    model = TableModel(seed=8)
    model.tables[..., END] = 99.0

    for beam_size in (1, 3):
        found = search(model, torch.tensor([1]), beam_size=beam_size)
        assert outcome(found[0]) == [((), True)]


def test_unfinished_hypotheses_fill_up_behind_the_finished_ones() -> None:
    model = TableModel(seed=9)
    model.tables[..., END] -= 6
    model.tables[0, :, 4, END] += 12  # one word that ends sentences, at a price
    model.tables[..., 4] -= 1

    (found,) = search(model, torch.tensor([3]), beam_size=5, num_best=5)

    ended = [hypothesis.is_finished for hypothesis in found]
    assert ended == sorted(ended, reverse=True)
    assert 0 < sum(ended) < 5
    for group in (True, False):
        scores = [hypothesis.score for hypothesis in found if hypothesis.is_finished == group]
        assert scores == sorted(scores, reverse=True)


@pytest.mark.parametrize("beam_size", [1, 2, 3, 5])
@pytest.mark.parametrize("num_sentences", [9, 30])
def test_a_sentence_is_decoded_alone_as_in_a_batch(num_sentences: int, beam_size: int) -> None:
    model = TableModel(num_sentences, seed=10)
    state = model.start()
    limits = torch.arange(num_sentences) * 3 % 8 + 2
    settings = {**IDS, "beam_size": beam_size, "num_best": beam_size}

    together = beam_search(model, state, max_lengths=limits, **settings)

    assert state.kept, "some leave the batch"
    for before, after in itertools.pairwise([num_sentences, *state.kept]):
        assert before - after >= before / 8, "but an eighth of them at a time"
    for sentence in range(num_sentences):
        here = slice(sentence, sentence + 1)
        (alone,) = beam_search(model, model.start(here), max_lengths=limits[here], **settings)
        assert alone == together[sentence]


@pytest.mark.parametrize("beam_size", [1, 3])
def test_a_few_finished_sentences_stay_in_the_batch_as_they_were(beam_size: int) -> None:
    model = TableModel(24, seed=15)
    model.tables[..., END] = -math.inf
    model.tables[0, ..., END], limits = 99.0, torch.full((24,), 6)
    model.tables[1, ..., END], limits[1] = -5.0, 2

    found = search(model, limits, beam_size=beam_size)

    assert model.num_rows == [24] + 5 * [24 * beam_size]
    assert [len(best.tokens) for (best,) in found] == [0, 2, *22 * [6]]
    for sentence, (best,) in enumerate(found):
        assert best.log_probability == pytest.approx(model.log_probability(sentence, best), abs=1e-5)


@pytest.mark.parametrize("beam_size", [1, 3])
def test_finished_sentences_leave_the_batch(beam_size: int) -> None:
    model = TableModel(8, seed=11)
    state = model.start()
    max_lengths = torch.arange(8) + 1

    beam_search(model, state, **IDS, max_lengths=max_lengths, beam_size=beam_size)

    assert model.num_rows[0] == 8  # one row for each sentence: its hypotheses have not parted yet
    assert len(model.num_rows) <= 8
    for step, num_rows in enumerate(model.num_rows[1:], start=1):
        assert num_rows <= (8 - step) * beam_size
    assert state.kept == sorted(state.kept, reverse=True)


@pytest.mark.parametrize("beam_size", [1, 4])
def test_padding_and_begin_are_never_written(beam_size: int) -> None:
    model = TableModel(3, seed=12)
    model.tables[..., [PAD, BEGIN]] += 5

    found = search(model, torch.full((3,), 6), beam_size=beam_size, num_best=beam_size)

    for sentence, hypotheses in enumerate(found):
        for hypothesis in hypotheses:
            assert not {PAD, BEGIN, END} & set(hypothesis.tokens)
            total = model.log_probability(sentence, hypothesis)  # their share of probability stays theirs
            assert hypothesis.log_probability == pytest.approx(total, abs=1e-4)


@pytest.mark.parametrize(
    ("begin", "pad", "end", "excluded"),
    [(1, 0, 2, [0, 1]), (7, 5, 2, [5, 7]), (3, 3, 2, [3]), (2, 5, 2, [5]), (3, 2, 2, [3]), (2, None, 2, [])],
)
def test_begin_and_padding_are_excluded_unless_they_are_the_end(
    begin: int, pad: int | None, end: int, excluded: list[int]
) -> None:
    assert excluded_tokens(begin, pad, end, torch.device("cpu")).tolist() == excluded


@pytest.mark.parametrize("beam_size", [1, 3])
@pytest.mark.parametrize("num_limits", [2, 4])
def test_a_limit_for_each_sentence_is_asked_for(num_limits: int, beam_size: int) -> None:
    with pytest.raises(AssertionError, match="one row for each sentence"):
        search(TableModel(3), torch.full((num_limits,), 5), beam_size=beam_size)


def test_a_model_that_begins_with_its_end_can_end() -> None:
    model = TableModel(seed=13)
    model.tables[..., END] += 3

    (found,) = greedy(model, model.start(), begin_id=END, end_id=END, max_lengths=torch.tensor([9]))

    assert found.is_finished


def test_an_empty_batch_has_no_hypotheses() -> None:
    model = TableModel(0)

    for beam_size in (1, 3):
        none = torch.zeros(0, dtype=torch.long)
        assert not search(model, none, beam_size=beam_size)


def test_logits_that_are_no_numbers_still_come_to_an_end() -> None:
    model = TableModel(2)
    model.tables.fill_(math.nan)

    for beam_size in (1, 3):
        found = search(model, torch.tensor([3, 5]), beam_size=beam_size)
        assert [len(hypotheses) for hypotheses in found] == [1, 1]
        assert all(math.isnan(hypotheses[0].score) for hypotheses in found)


def test_the_model_s_logits_are_left_as_they_are() -> None:
    model = TableModel(2, seed=14)
    kept: list[Tensor] = []

    class Keeper:
        def step(self, tokens: Tensor, state: TableState) -> tuple[Tensor, TableState]:
            logits, state = model.step(tokens, state)
            kept.extend((logits, logits.clone()))
            return logits, state

    beam_search(Keeper(), model.start(), **IDS, max_lengths=torch.tensor([3, 5]), beam_size=3)

    for given, copy in zip(kept[::2], kept[1::2], strict=True):
        assert torch.equal(given, copy)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"beam_size": 0}, "beam holds 0"),
        ({"beam_size": 2, "num_best": 3}, "best 3 hypotheses"),
        ({"beam_size": 2, "num_best": 0}, "best 0 hypotheses"),
        ({"beam_size": 2, "patience": 0.0}, "patience is 0"),
        ({"beam_size": 2, "patience": -1.0}, "patience is -1"),
    ],
)
def test_settings_that_do_not_fit_are_explained(changes: dict[str, Any], words: str) -> None:
    model = TableModel()

    with pytest.raises(ConfigError, match=words):
        search(model, torch.tensor([3]), **changes)


@pytest.mark.parametrize("vocabulary", [5, 15, 16, 17, 67, 323])  # none, one and many blocks of tokens
@pytest.mark.parametrize("beam_size", [1, 4])
def test_the_best_continuations_are_those_of_the_whole_vocabulary(vocabulary: int, beam_size: int) -> None:
    generator = torch.Generator().manual_seed(vocabulary)
    totals = torch.randn(3, beam_size, generator=generator)
    logits = torch.randn(3 * beam_size, vocabulary, generator=generator)
    num_ranked = 2 * beam_size

    ranked = rank(logits, totals, num_ranked, torch.tensor([PAD, BEGIN]))

    gains = logits.log_softmax(dim=1)
    gains[:, [PAD, BEGIN]] = -math.inf
    joined = (totals.flatten()[:, None] + gains).view(3, -1)
    expected, places = joined.sort(dim=1, descending=True)
    torch.testing.assert_close(ranked.totals, expected[:, :num_ranked], atol=1e-6, rtol=0)
    assert torch.equal(ranked.parents * vocabulary + ranked.tokens, places[:, :num_ranked])


def test_fewer_continuations_than_asked_for_are_filled_up_with_impossible_ones() -> None:
    totals, logits = torch.randn(13, 2), torch.randn(26, 5)

    ranked = rank(logits, totals, 12, torch.tensor([PAD]))

    gains = logits.log_softmax(dim=1)[:, 1:]
    expected = (totals.flatten()[:, None] + gains).view(13, 8).sort(dim=1, descending=True).values
    assert all(part.shape == (13, 12) for part in ranked)
    torch.testing.assert_close(ranked.totals[:, :8], expected)
    assert (ranked.totals[:, 8:] == -math.inf).all()


@pytest.mark.parametrize("rows", [1, 2, 7])
@pytest.mark.parametrize("vocabulary", [5, 16, 48, 67, 320])
def test_the_likeliest_token_is_that_of_the_whole_vocabulary(vocabulary: int, rows: int) -> None:
    gains = torch.randn(rows, vocabulary)

    best, tokens = likeliest(gains)

    assert best.tolist() == [max(row) for row in gains.tolist()]
    assert tokens.tolist() == [row.index(max(row)) for row in gains.tolist()]


class MarianState:
    """What was written so far; the decoder is run over all of it, without a cache."""

    def __init__(self, encoded: Tensor, mask: Tensor, written: Tensor) -> None:
        self.encoded, self.mask, self.written = encoded, mask, written

    @property
    def num_rows(self) -> int:
        return len(self.written)

    def _of_rows(self, rows: Tensor) -> MarianState:
        return MarianState(self.encoded[rows], self.mask[rows], self.written[rows])

    def expand(self, count: int) -> MarianState:
        self.beam_size = count
        state = self._of_rows(torch.arange(self.num_rows).repeat_interleave(count))
        state.beam_size = count
        return state

    beam_size = 1

    def select(self, rows: Tensor) -> MarianState:
        state = self._of_rows(rows)
        state.beam_size = self.beam_size
        return state

    def keep(self, sentences: Tensor) -> MarianState:
        rows = sentences[:, None] * self.beam_size + torch.arange(self.beam_size)
        return self.select(rows.flatten())


MARIAN_END, MARIAN_PAD, MARIAN_VOCABULARY = 0, 22, 23


class Marian:
    """A tiny Marian model of transformers with random weights, as a SequenceModel."""

    def __init__(self) -> None:
        from transformers import MarianConfig, MarianMTModel

        config = MarianConfig(
            vocab_size=MARIAN_VOCABULARY,
            d_model=16,
            encoder_layers=1,
            decoder_layers=2,
            encoder_attention_heads=2,
            decoder_attention_heads=2,
            encoder_ffn_dim=24,
            decoder_ffn_dim=24,
            max_position_embeddings=64,
            init_std=0.6,  # peaked distributions, so that no two scores are nearly equal
            eos_token_id=MARIAN_END,
            pad_token_id=MARIAN_PAD,
            decoder_start_token_id=MARIAN_PAD,
            forced_eos_token_id=None,
            attn_implementation="eager",
        )
        torch.manual_seed(3)
        self.model = MarianMTModel(config).eval()
        self.model.final_logits_bias[0, MARIAN_END] = 4.5  # sentences of all lengths

    @torch.no_grad()
    def start(self, source: Tensor, mask: Tensor) -> MarianState:
        encoded = self.model.get_encoder()(source, attention_mask=mask).last_hidden_state
        return MarianState(encoded, mask, torch.zeros(len(source), 0, dtype=torch.long))

    def step(self, tokens: Tensor, state: MarianState) -> tuple[Tensor, MarianState]:
        written = torch.cat((state.written, tokens[:, None]), dim=1)
        output = self.model(
            encoder_outputs=(state.encoded,),
            attention_mask=state.mask,
            decoder_input_ids=written,
            use_cache=False,
        )
        state.written = written
        return output.logits[:, -1], state


@pytest.mark.parametrize(
    # Their "never" bounds a live hypothesis as our exact rule does, but compares with the worst of as many
    # finished ones as the beam is wide: equal for num_best=beam_size. Their True stops at so many finished
    # ones, our usual patience. Their default False bounds by the present length, which is no bound where
    # the penalty is above 0, and has no counterpart here.
    ("early_stopping", "patience"),
    [("never", math.inf), (True, USUAL_PATIENCE)],
)
@pytest.mark.parametrize("length_penalty", PENALTIES)
def test_beam_search_finds_what_that_of_transformers_finds(
    length_penalty: float, early_stopping: bool | str, patience: float
) -> None:
    marian, beam_size, max_length = Marian(), 4, 12
    source = torch.randint(1, MARIAN_PAD, (6, 7), generator=torch.Generator().manual_seed(0))
    lengths = torch.tensor([7, 3, 5, 6, 2, 4])
    mask = (torch.arange(7) < lengths[:, None]).long()
    source = source.masked_fill(mask == 0, MARIAN_PAD)

    theirs = marian.model.generate(
        source,
        attention_mask=mask,
        num_beams=beam_size,
        num_return_sequences=beam_size,
        length_penalty=length_penalty,
        early_stopping=early_stopping,
        max_length=max_length + 1,  # with the token they begin with
        do_sample=False,
        bad_words_ids=[[MARIAN_PAD]],
        return_dict_in_generate=True,
        output_scores=True,
    )
    ours = beam_search(
        marian,
        marian.start(source, mask),
        begin_id=MARIAN_PAD,
        end_id=MARIAN_END,
        max_lengths=torch.full((6,), max_length),
        beam_size=beam_size,
        length_penalty=length_penalty,
        num_best=beam_size,
        patience=patience,
    )

    num_compared = 0
    for sentence in range(6):
        rows = slice(sentence * beam_size, (sentence + 1) * beam_size)
        # They rank what was cut at the longest length among what ended, we behind it.
        ended = [
            (tuple(tokens[1 : tokens.index(MARIAN_END)]), score)
            for tokens, score in zip(
                theirs.sequences[rows].tolist(), theirs.sequences_scores[rows].tolist(), strict=True
            )
            if MARIAN_END in tokens
        ]
        compared = ours[sentence][: len(ended)]
        assert [hypothesis.tokens for hypothesis in compared] == [tokens for tokens, _ in ended]
        scores = [hypothesis.score for hypothesis in compared]
        assert scores == pytest.approx([score for _, score in ended], abs=1e-4)
        assert all(hypothesis.is_finished for hypothesis in compared)
        num_compared += len(ended)
    assert num_compared > 12
