from __future__ import annotations

import math
import random
from collections import Counter
from itertools import pairwise

import pytest
import sentencepiece

from vitrail.data.text.subword_sampling import (
    SubwordKind,
    SubwordSampler,
    draw_path,
    kind_of,
    merge_with_dropout,
)
from vitrail.data.text.subwords import SentencePieceSubwords

TEXTS = [
    "a small dog runs across the green field .",
    "two small dogs, 7 cats & 1 (slow) man run across a field of snow",
    "die M\u00e4nner gehen langsam \u00fcber die Stra\u00dfe!",
]
ODD = ["", "a  b", " a ", "\u4e2d\u6587 a\u4e2db \u4e2d", "\u2581a\u2581", "x" * 250, "a\tb", "\ud800"]
RANKS = {"ab": 0.0, "bc": -1.0, "abc": -2.0, "cd": -3.0}
CHANCES = {"a": 0.3, "b": 0.2, "c": 0.1, "ab": 0.25, "bc": 0.1, "abc": 0.05}


def load(kind: SubwordKind) -> sentencepiece.SentencePieceProcessor:
    model = SentencePieceSubwords.train(TEXTS, size=100, kind=kind).to_bytes()
    return sentencepiece.SentencePieceProcessor(model_proto=model)


@pytest.mark.parametrize(("kind", "dropout"), [("bpe", 0.0), ("unigram", 200.0)])
def test_the_likeliest_segmentation_is_that_of_the_library(kind: SubwordKind, dropout: float) -> None:
    processor = load(kind)
    texts = [text for text in TEXTS + ODD if text.isprintable() and len(text) < 200]

    rows = SubwordSampler(processor, processor.unk_id()).encode(texts, dropout=dropout, seed=1)

    assert rows == processor.encode(texts)


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_any_text_is_cut_into_what_it_was(kind: SubwordKind) -> None:
    processor = load(kind)

    rows = SubwordSampler(processor, processor.unk_id()).encode(TEXTS + ODD, dropout=0.5, seed=1)

    plain = processor.encode([text.encode("utf-8", "replace") for text in TEXTS + ODD])
    assert processor.decode(rows) == processor.decode(plain)
    assert kind_of(processor) == kind


@pytest.mark.parametrize(
    ("letters", "pieces"),
    [("abcd", ["abc", "d"]), ("bcd", ["bc", "d"]), ("xcd", ["x", "cd"]), ("a", ["a"]), ("", [])],
)
def test_merges_are_made_in_the_order_of_their_ranks(letters: str, pieces: list[str]) -> None:
    assert merge_with_dropout(letters, RANKS, dropout=0.0, draws=random.Random(1)) == pieces


def reference_merges(letters: str, dropout: float, draws: random.Random) -> list[str]:
    """Follow algorithm 1 of Provilkov et al. 2020 to the letter."""
    pieces = list(letters)
    while True:
        merges = [(RANKS.get(a + b), i) for i, (a, b) in enumerate(pairwise(pieces))]
        left = [(-rank, i) for rank, i in merges if rank is not None and draws.random() >= dropout]
        if not left:
            return pieces
        place = min(left)[1]
        pieces[place : place + 2] = ["".join(pieces[place : place + 2])]


@pytest.mark.parametrize("dropout", [0.1, 0.5, 0.9])
def test_segmentations_are_as_frequent_as_in_the_paper(dropout: float) -> None:
    draws, count = random.Random(3), 20_000

    ours = Counter(
        "|".join(merge_with_dropout("abcdab", RANKS, dropout=dropout, draws=draws)) for _ in range(count)
    )
    theirs = Counter("|".join(reference_merges("abcdab", dropout, draws)) for _ in range(count))

    for cut in ours | theirs:
        # Five standard deviations of the difference of two frequencies, at most one half each.
        assert abs(ours[cut] - theirs[cut]) < 5 * math.sqrt(2 * max(ours[cut], theirs[cut])), cut


@pytest.mark.parametrize("exponent", [0.2, 1.0])
def test_paths_are_drawn_with_their_probability(exponent: float) -> None:
    scores = {piece: math.log(chance) for piece, chance in CHANCES.items()}
    draws, count = random.Random(4), 20_000

    found = Counter(
        "|".join(draw_path("abc", scores, exponent=exponent, unknown_score=-20.0, longest=3, draws=draws))
        for _ in range(count)
    )

    paths = {"a|b|c": 0.3 * 0.2 * 0.1, "ab|c": 0.25 * 0.1, "a|bc": 0.3 * 0.1, "abc": 0.05}
    total = sum(chance**exponent for chance in paths.values())
    assert found.keys() == paths.keys()
    for path, chance in paths.items():
        assert found[path] / count == pytest.approx(chance**exponent / total, abs=0.02)


def test_unknown_letters_are_one_step_of_a_path() -> None:
    scores = {piece: math.log(chance) for piece, chance in CHANCES.items()}

    path = draw_path("x\u4e2d", scores, exponent=1.0, unknown_score=-20.0, longest=3, draws=random.Random(1))

    assert path == ["x", "\u4e2d"]


def test_a_sampler_that_remembers_draws_as_a_new_one_does() -> None:
    processor = load("bpe")
    used = SubwordSampler(processor, processor.unk_id())
    for seed in range(20):
        used.encode(TEXTS, dropout=0.3, seed=seed)
        used.encode(TEXTS, dropout=0.6, seed=seed)

    for seed in range(20):
        new = SubwordSampler(processor, processor.unk_id())
        assert used.encode(TEXTS, dropout=0.3, seed=seed) == new.encode(TEXTS, dropout=0.3, seed=seed)


def test_a_word_is_not_always_cut_alike() -> None:
    processor = load("bpe")

    (row,) = SubwordSampler(processor, processor.unk_id()).encode(["across " * 50], dropout=0.3, seed=1)

    words = processor.decode(row).split()
    assert words == ["across"] * 50
    starts = [place for place, number in enumerate(row) if processor.id_to_piece(number)[0] == "\u2581"]
    lengths = {right - left for left, right in pairwise(starts)}
    assert len(lengths) > 1


def test_numbers_may_be_given() -> None:
    processor = load("bpe")
    numbers = {"\u2581a": 70}

    rows = SubwordSampler(processor, 5, numbers).encode(["a b a"], dropout=0.0, seed=1)

    assert rows == [[70, 5, 70]]
