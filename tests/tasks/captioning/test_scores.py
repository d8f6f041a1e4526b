"""Scores of captions: CIDEr worked out by hand, BLEU and ROUGE-L as their libraries give them."""

from __future__ import annotations

import math

import pytest

from vitrail.core.errors import DataError
from vitrail.tasks.captioning.scores import (
    caption_scores,
    caption_tables,
    cider_scores,
    headline_scores,
    sentence_bleu,
)
from vitrail.tasks.generation import rank_rows, typical_rows

pytest.importorskip("sacrebleu", reason="needs the extra captions")
pytest.importorskip("rouge_score", reason="needs the extra captions")

# Of two images every n-gram that one of them alone has counts log 2, and one of both nothing.
REFERENCES = [[list("abcd")], [list("axyz")]]


def test_cider_of_a_shorter_caption_is_what_the_equations_give() -> None:
    # The word "a" is in both images' references. The others: two of three words, two of three pairs, one of
    # two triples; a caption of two pairs against three.
    expected = 10 * math.exp(-1 / 72) * (2 / math.sqrt(2 * 3) + 2 / math.sqrt(2 * 3) + 1 / math.sqrt(2)) / 4
    assert cider_scores([list("abc"), []], REFERENCES) == pytest.approx([expected, 0.0])


def test_cider_does_not_count_a_repeated_word_twice() -> None:
    # b counts twice in the caption's length, and once in what it shares; the pair "b b" is in no reference.
    expected = 10 * (3 / math.sqrt(6 * 3) + 2 / 3 + 1 / 2) / 4
    assert cider_scores([list("bbcd"), []], REFERENCES)[0] == pytest.approx(expected)


def test_cider_is_the_mean_over_references() -> None:
    both = [[list("abcd"), list("pqrs")], [list("axyz")]]
    alone = cider_scores([list("bcd"), ["x"]], REFERENCES)
    among = cider_scores([list("bcd"), ["x"]], both)
    assert among[0] == pytest.approx(alone[0] / 2)
    assert among[1] == pytest.approx(alone[1])


def test_cider_refuses_what_does_not_fit() -> None:
    for hypotheses, references in (([], []), ([["a"]], []), ([["a"]], [[]])):
        with pytest.raises(DataError, match=r"captions and \d lists of references"):
            cider_scores(hypotheses, references)


@pytest.mark.parametrize(
    "words", ["a dog runs fast", "the the dog", "dog", "a dog runs over the green grass", "cats", "fast runs"]
)
def test_bleu_of_a_caption_is_that_of_sacrebleu(words: str) -> None:
    from sacrebleu.metrics import BLEU

    references = ["a dog runs fast over grass", "the dog is running", "dog"]
    metric = BLEU(tokenize="none", smooth_method="add-k", smooth_value=0.1, effective_order=False, force=True)
    expected = metric.sentence_score(words, references).score / 100
    assert sentence_bleu(words.split(), [text.split() for text in references]) == pytest.approx(expected)
    assert sentence_bleu([], [["a"]]) == 0.0


CAPTIONS = ["A dog runs.", "two cats sleeping"]
WANTED = [["A dog runs fast", "The dog runs!", "dogs"], ["Two cats sleep ."]]


def test_case_and_punctuation_do_not_count_and_references_may_differ_in_number() -> None:
    perfect = caption_scores(["a DOG runs fast !"], [["A dog runs fast."]], num_resamples=0)
    assert perfect.bleu == pytest.approx((1.0, 1.0, 1.0, 1.0))
    assert perfect.rouge_l == pytest.approx(1.0)
    scores = caption_scores(CAPTIONS, WANTED, num_resamples=0)
    # Of the words a dog runs two cats sleeping, five are in a reference; of the pairs three of four.
    assert scores.bleu[0] == pytest.approx(5 / 6)
    assert scores.bleu[1] == pytest.approx(math.sqrt(5 / 6 * 3 / 4))
    assert scores.bleu[3] == 0.0
    # F1 of the longest common subsequence with the best reference: 3 of 3 and 4 words, then 2 of 3 and 3.
    assert scores.rouge_l == pytest.approx((6 / 7 + 2 / 3) / 2)
    assert scores.length_ratio == pytest.approx(1.0)
    assert "smooth:none" in scores.signature


def test_brevity_counts_against_the_reference_of_nearest_length() -> None:
    short = caption_scores(["a dog"], [["a dog runs fast today", "a dog runs"]], num_resamples=0)
    assert short.bleu[0] == pytest.approx(math.exp(1 - 3 / 2))
    assert short.length_ratio == pytest.approx(2 / 3)


def test_tables_rank_images_and_headlines_name_every_number() -> None:
    captions = ["a b c d", "x", "a x y z"]
    wanted = [["a b c d"], ["a b q"], ["a x y q"]]
    tables = caption_tables(captions, wanted, indices=[4, 7, 9])
    assert [image.index for image in rank_rows(tables.images, "cider", best_first=True)] == [4, 9, 7]
    assert [image.index for image in rank_rows(tables.images, "cider")[:1]] == [7]
    assert [image.index for image in typical_rows(tables.images, "cider", 1)] == [9]
    headline = headline_scores(tables.scores)
    assert {"bleu1", "bleu2", "bleu3", "bleu4", "cider", "rouge_l", "length_ratio"} <= set(headline)
    assert headline["bleu4_lower"] <= headline["bleu4"] <= headline["bleu4_upper"] + 0.2
    assert type(tables).from_tree(tables.model_dump(mode="json")) == tables
