"""Texts that evaluators collect, and BLEU of resampled test sets beside sacrebleu's own paired test."""

from __future__ import annotations

import random

import pytest
import torch

from vitrail.models.decoding import Hypothesis
from vitrail.report.significance import paired_bootstrap, resampled_interval
from vitrail.tasks.captioning.scores import BLEU4, caption_tables
from vitrail.tasks.generation import WrittenTexts
from vitrail.tasks.translation.scores import BLEU, Translations, corpus_scores

significance = pytest.importorskip("sacrebleu.significance")
metrics = pytest.importorskip("sacrebleu.metrics")

WORDS = ["ein", "zwei", "drei", "vier", "fuenf", "sechs", "sieben", "acht", "neun", "zehn"]


def resampled_translations(runs, references, num_resamples, *, tokenised=False):
    return BLEU.resample([Translations(run, references, "de", tokenised) for run in runs], num_resamples)


def sentences(count: int, seed: int) -> list[str]:
    drawn = random.Random(seed)
    return [" ".join(drawn.choices(WORDS, k=drawn.randint(5, 9))) for _ in range(count)]


def spoil(texts: list[str], share: float, seed: int) -> list[str]:
    """Replace a share of the words by another one."""
    drawn = random.Random(seed)
    return [" ".join("wort" if drawn.random() < share else word for word in text.split()) for text in texts]


@pytest.fixture(scope="module")
def corpus() -> tuple[list[str], list[str], list[str]]:
    references = sentences(61, seed=1)
    return references, spoil(references, 0.1, seed=2), spoil(references, 0.25, seed=3)


def test_resamples_are_those_of_sacrebleu(corpus):
    references, better, worse = corpus
    test = significance.PairedTest(
        [("better", better), ("worse", worse)],
        {"bleu": metrics.BLEU(trg_lang="de")},
        [references],
        test_type="bs",
        n_samples=200,
    )
    _, found = test()
    theirs = found["BLEU"]

    ours = [resampled_translations([texts], references, 200) for texts in (better, worse)]

    for scores, result in zip(ours, theirs, strict=True):
        assert scores.mean() == pytest.approx(result.mean, rel=1e-6)
        lower, upper = resampled_interval(scores)
        assert (upper - lower) / 2 == pytest.approx(result.ci, rel=0.02)  # theirs is cut at whole ranks
    difference = theirs[0].score - theirs[1].score
    p = paired_bootstrap(difference, *ours).p
    assert theirs[1].p_value <= p <= 2 * theirs[1].p_value  # two sides, not one
    assert p < 0.05


def test_runs_are_averaged_on_the_same_resamples(corpus):
    references, better, worse = corpus

    def resampled(*runs):
        return resampled_translations(runs, references, 5)

    both = resampled(better, worse)
    assert both == pytest.approx((resampled(better) + resampled(worse)) / 2)


def test_resamples_of_captions_surround_their_score(corpus):
    references, better, _ = corpus
    several = [[text, "a dog"] if place % 2 else [text] for place, text in enumerate(references)]
    tables = caption_tables(better, several, indices=range(len(references)))
    score = tables.scores.bleu[3]

    resampled = BLEU4.resample([tables], 100)

    lower, upper = resampled_interval(resampled)
    assert 0 < lower < score < upper < 1


def test_text_that_came_in_words_is_taken_as_it_is(corpus):
    references, better, _ = corpus
    score = corpus_scores(better, references, language="de", tokenised=True, num_resamples=0).bleu.score
    scores = resampled_translations([better], references, 60, tokenised=True)
    assert scores.min() < score < scores.max()


@pytest.mark.parametrize(
    "texts",
    [[], [""], ["", "a", ""], ["zwei\nM\u00e4nner", "\U0001f415", "\x00 b"], ["\ud800 lone"]],
    ids=["none", "empty", "empties", "unicode", "surrogate"],
)
def test_texts_come_back_as_they_were(texts: list[str]) -> None:
    written, other = WrittenTexts("text"), WrittenTexts("text")
    count = len(texts)
    written.add(
        torch.arange(count),
        texts,
        num_tokens=torch.arange(count),
        nll=torch.arange(count) / 3,
        hypotheses=[Hypothesis((), 0.0, 0.0, is_finished=True)] * count,
    )

    other.absorb(written.state())

    assert other["text"] == texts
    assert all(other[name] == written[name] for name in other.names)
