from __future__ import annotations

import pickle
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch

from making.multi30k import multi30k
from vitrail.core.errors import DataError
from vitrail.data.text.subwords import PairVocabulary
from vitrail.data.text_preprocessing import PairPreprocessing
from vitrail.tasks.translation.dataset import PairSplit
from vitrail.tasks.translation.samples import PairSource

PREPROCESSING = PairPreprocessing(languages=("xx", "yy"))
LETTERS = "abcdefgh"


def words(count: int, generator: torch.Generator) -> str:
    """Draw so many words of one letter; the vocabulary below has a subword for each and no longer ones."""
    places = torch.randint(len(LETTERS), (count,), generator=generator).tolist()
    return " ".join(LETTERS[place] for place in places)


def make_split(count: int = 101) -> PairSplit:
    generator = torch.Generator().manual_seed(3)
    lengths = torch.randint(1, 14, (count,), generator=generator).tolist()
    targets = [max(1, length + place % 3 - 1) for place, length in enumerate(lengths)]
    return PairSplit(
        [words(length, generator) for length in lengths],
        [words(length, generator) for length in targets],
        [f"pairs:{place + 1}" for place in range(count)],
    )


@pytest.fixture(scope="module")
def vocabulary() -> PairVocabulary:
    return PairVocabulary.train(list(LETTERS), list(LETTERS), size=40, is_joint=False)


@pytest.fixture
def source(vocabulary: PairVocabulary) -> PairSource:
    return PairSource(make_split(), vocabulary, PREPROCESSING)


def cost(source: PairSource, batch: list[int]) -> int:
    return int(source.lengths[:, batch].max()) * len(batch)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_a_pair_is_loaded_as_it_was_found(vocabulary: PairVocabulary) -> None:
    source = PairSource(PairSplit(["A  b", "c"], ["d", " E"], ["x:1", "x:2"]), vocabulary, PREPROCESSING)

    assert len(source) == 2
    unknown, known = vocabulary.source.unknown_id, vocabulary.source.encode(["c", "b"])
    assert source.load(1, None)[:4] == ("c", " E", 1, known[0])
    assert source.load(0, seeded(1))[:3] == ("A  b", "d", 0)
    source.prepare()
    assert source.load(0, None).source_row[-1:] == known[1]
    assert unknown in source.load(0, None).source_row
    assert source.load(0, None).target_row == vocabulary.target.encode(["d"])[0]


def test_lengths_count_subwords_and_the_end(source: PairSource) -> None:
    expected = [
        [len(text.split()) + 1 for text in texts] for texts in (source.split.sources, source.split.targets)
    ]

    assert source.lengths.tolist() == expected


def test_batches_hold_every_pair_once_and_as_many_tokens_as_allowed(source: PairSource) -> None:
    for generator in (None, seeded(1)):
        plan = source.plan_batches(45, generator)

        assert sorted(chain.from_iterable(plan)) == list(range(101))
        costs = [cost(source, batch) for batch in plan]
        assert max(costs) <= 45
        assert np.mean(costs) > 30
        assert len({len(batch) for batch in plan}) > 1


def test_a_pair_longer_than_a_batch_is_one_by_itself(source: PairSource) -> None:
    large = [batch for batch in source.plan_batches(5, seeded(1)) if cost(source, batch) > 5]

    assert large
    assert {batch[0] for batch in large} == set(np.flatnonzero(source.lengths.max(axis=0) > 5).tolist())
    assert all(len(batch) == 1 for batch in large)


def test_training_plans_follow_their_generator_and_come_in_no_order_of_length(source: PairSource) -> None:
    first, other = source.plan_batches(30, seeded(1)), source.plan_batches(30, seeded(2))

    assert source.plan_batches(30, seeded(1)) == first
    assert pickle.loads(pickle.dumps(source)).plan_batches(30, seeded(1)) == first
    assert other != first
    assert {frozenset(batch) for batch in other} != {frozenset(batch) for batch in first}
    longest = [int(source.lengths[:, batch].max()) for batch in first]
    assert longest not in (sorted(longest), sorted(longest, reverse=True))


def test_evaluation_plans_begin_with_the_longest_sources(source: PairSource) -> None:
    order = list(chain.from_iterable(source.plan_batches(30, None)))

    lengths = source.lengths[0][order].tolist()
    assert lengths == sorted(lengths, reverse=True)


def test_long_pairs_are_left_out_of_training_alone(vocabulary: PairVocabulary) -> None:
    source = PairSource(make_split(), vocabulary, PREPROCESSING, max_length=8)
    short = np.flatnonzero(source.lengths.max(axis=0) <= 8).tolist()

    assert 0 < len(short) < 101
    assert sorted(chain.from_iterable(source.plan_batches(30, seeded(1)))) == short
    assert sorted(chain.from_iterable(source.plan_batches(30, None))) == list(range(101))


def test_a_limit_that_leaves_nothing_is_refused_and_an_empty_split_has_an_empty_plan(
    vocabulary: PairVocabulary,
) -> None:
    with pytest.raises(DataError, match=r"Raise data\.max_length"):
        PairSource(make_split(), vocabulary, PREPROCESSING, max_length=1).plan_batches(30, seeded(1))
    empty = PairSource(PairSplit([], [], []), vocabulary, PREPROCESSING)
    assert empty.plan_batches(30, None) == empty.plan_batches(30, seeded(1)) == []


@pytest.fixture(scope="module")
def sampled() -> PairSource:
    """Pairs of long words, cut at random."""
    sources = ["one two three four five", "five four three two one", "two two four", "three one four one"] * 9
    targets = ["eins zwei drei vier", "vier drei zwei eins", "zwei zwei vier", "drei eins vier eins"] * 9
    split = PairSplit(sources, targets, [f"x:{place}" for place in range(len(sources))])
    vocabulary = PairVocabulary.train(sources, targets, size=44, is_joint=False)
    return PairSource(split, vocabulary, PREPROCESSING, max_length=40, subword_dropout=0.5)


def test_plans_know_the_lengths_of_what_is_cut_at_random(sampled: PairSource) -> None:
    plan = sampled.plan_batches(60, seeded(1))

    batches = [[sampled.load(number, None) for number in numbers] for numbers in plan]
    for batch in batches:
        longest = max(max(len(pair.source_row), len(pair.target_row)) + 1 for pair in batch)
        assert longest * len(batch) <= 60
    assert sorted(pair.index for pair in chain.from_iterable(batches)) == list(range(36))
    for pair in chain.from_iterable(batches):
        assert sampled.vocabulary.source.decode([pair.source_row]) == [pair.source]
        assert sampled.vocabulary.target.decode([pair.target_row]) == [pair.target]


def test_every_plan_cuts_otherwise_and_follows_its_generator_in_every_process(sampled: PairSource) -> None:
    def rows(seed: int, source: PairSource = sampled) -> list[list[int]]:
        plan = sampled.plan_batches(60, seeded(seed))
        return [source.load(number, None).source_row for numbers in plan for number in numbers]

    first = rows(1)
    assert first != rows(2)
    assert rows(1) == first
    assert rows(1, PairSource(sampled.split, sampled.vocabulary, PREPROCESSING, subword_dropout=0.5)) == first


def test_evaluation_cuts_nothing_at_random(sampled: PairSource) -> None:
    plan = sampled.plan_batches(60, None)

    assert sorted(chain.from_iterable(plan)) == list(range(36))
    pair = sampled.load(0, None)
    assert pair.source_row == sampled.vocabulary.source.encode([pair.source])[0]


def test_little_of_a_plan_of_multi30k_is_padding(shared_data: Path) -> None:
    english, german = (multi30k(shared_data, f"train.{language}") for language in ("en", "de"))
    vocabulary = PairVocabulary.train(english[::20], german[::20], size=2000)
    names = [f"train:{place}" for place in range(len(english))]
    source = PairSource(PairSplit(english, german, names), vocabulary, PREPROCESSING)

    plan = source.plan_batches(4096, seeded(1))

    padded = sum(source.lengths[:, batch].max(axis=1).sum() * len(batch) for batch in plan)
    assert 1 - source.lengths.sum() / padded < 0.1
