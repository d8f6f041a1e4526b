"""Scores of translations against formulas of the papers and words of Moses' scripts."""

from __future__ import annotations

import hashlib
import math
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from making.multi30k import multi30k
from vitrail.core.errors import ConfigError, DataError
from vitrail.data.text.languages import short_code
from vitrail.tasks.training import train
from vitrail.tasks.translation.scores import (
    MosesWords,
    TranslationTables,
    bleu_by_length,
    corpus_scores,
    headline_scores,
    sentence_chrf,
    tokenised_bleu,
    translation_tables,
)

REFERENCES = [
    "ein mann mit einem hut steht neben einem alten zug .",
    "zwei kinder spielen am strand mit einem roten ball .",
    "eine frau liest im garten ein buch .",
    "der hund rennt schnell durch das hohe gras .",
    "drei junge leute sitzen vor einem haus und lachen .",
]
HYPOTHESES = [
    "ein mann mit einem hut steht vor einem zug .",
    "zwei kinder spielen mit einem roten ball am strand .",
    "eine frau liest im garten ein buch .",
    "ein hund rennt durch das hohe gras .",
    "drei leute sitzen vor einem haus .",
]


# Of data/task1/tok/SPLIT.lc.norm.tok.LANGUAGE in the repository multi30k/dataset, commit a3d2e0d, its lines
# joined by newlines and their words by one space; the words of published systems.
PUBLISHED_WORDS = {
    "val.de": "5421024f481159cf075d8a97995f8a54c2c3bb51177bc0e42fb494ce941a3090",
    "val.en": "a8ab2035ec9fa368baa2cd547ef3ef59e10803499f27ad8c4b52bb113438f74d",
    "val.fr": "83ffe548c990189a35d8f65fcd12e3aed26f07dad759003df14fe1a15dfe04bc",
    "val.cs": "b25d1b26ba327599efbf5fd07cee1b1cc188ae793ff41161c2b316eb42f1c59d",
    "test_2016_flickr.de": "a3b281d3c3b7b15851f19730e2fcc02405066854e09130426afae3e7876dcb2f",
    "test_2016_flickr.en": "80ad2217edc83cb4ea51c1b4ef0cd56d8e65d759ee8d8afea34de1406dea70d5",
    "test_2016_flickr.fr": "5bdb48c85c450abb9549512228dd092acb133dbc5d137249b4966539a419e0dc",
    "test_2016_flickr.cs": "c11c91425fcebf2c19bde7c173a4a2a65463a43311ff2caec5541059a585c635",
}


def ngrams(sequence: Any, order: int) -> Counter[Any]:
    return Counter(tuple(sequence[place : place + order]) for place in range(len(sequence) - order + 1))


def bleu_of_the_paper(hypotheses: list[str], references: list[str]) -> float:
    """Papineni et al. 2002, sections 2.1.1 to 2.3, with one reference, N = 4 and even weights."""
    candidates, wanted = [text.split() for text in hypotheses], [text.split() for text in references]
    logarithms = []
    for order in range(1, 5):
        clipped = sum(
            (ngrams(c, order) & ngrams(r, order)).total() for c, r in zip(candidates, wanted, strict=True)
        )
        logarithms.append(math.log(clipped / sum(ngrams(c, order).total() for c in candidates)))
    c, r = sum(map(len, candidates)), sum(map(len, wanted))
    brevity = 1.0 if c > r else math.exp(1 - r / c)
    return 100 * brevity * math.exp(sum(logarithms) / 4)


def chrf_of_the_paper(hypothesis: str, reference: str) -> float:
    """Popovic 2015, section 2, with character n-grams up to 6, beta 2 and spaces left out."""
    hypothesis, reference = hypothesis.replace(" ", ""), reference.replace(" ", "")
    precisions, recalls = [], []
    for order in range(1, 7):
        mine, theirs = ngrams(hypothesis, order), ngrams(reference, order)
        both = (mine & theirs).total()
        precisions.append(both / mine.total())
        recalls.append(both / theirs.total())
    precision, recall = sum(precisions) / 6, sum(recalls) / 6
    return 100 * 5 * precision * recall / (4 * precision + recall)


def test_bleu_of_words_is_that_of_the_paper() -> None:
    scores = corpus_scores(HYPOTHESES, REFERENCES, language="de", tokenised=True)

    expected = bleu_of_the_paper(HYPOTHESES, REFERENCES)
    assert scores.bleu.score == pytest.approx(expected, abs=1e-9)
    assert 0 < scores.brevity_penalty < 1
    assert scores.length_ratio == pytest.approx(
        sum(len(text.split()) for text in HYPOTHESES) / sum(len(text.split()) for text in REFERENCES)
    )
    assert len(scores.precisions) == 4
    assert scores.num_sentences == 5


def test_bleu_of_plain_text_counts_its_signs_as_words() -> None:
    plain = [text.replace(" .", ".") for text in HYPOTHESES], [text.replace(" .", ".") for text in REFERENCES]

    scores = corpus_scores(*plain, language="de")

    assert scores.bleu.score == pytest.approx(bleu_of_the_paper(HYPOTHESES, REFERENCES), abs=1e-9)
    assert "tok:13a" in scores.bleu.signature
    assert "case:mixed" in scores.bleu.signature
    assert "bs:1000|seed:12345" in scores.bleu.signature


def test_case_counts_for_bleu_but_not_for_tokenised_bleu() -> None:
    shouted = [text.upper() for text in HYPOTHESES]

    assert corpus_scores(shouted, REFERENCES, language="de", num_resamples=0).bleu.score < 10
    score = tokenised_bleu(shouted, REFERENCES, language="de_DE", num_resamples=0)
    assert score.score == pytest.approx(bleu_of_the_paper(HYPOTHESES, REFERENCES), abs=1e-9)
    for part in ("case:lc", "norm:moses", "tok:moses-de", "sacremoses:", "smooth:none", "version:"):
        assert part in score.signature


def test_tokenised_bleu_takes_words_as_they_are_and_is_not_smoothed() -> None:
    odd = [text.replace(" .", "!?.") for text in HYPOTHESES]

    score = tokenised_bleu(odd, REFERENCES, language="de", tokenised=True)

    assert score.score == pytest.approx(bleu_of_the_paper(odd, REFERENCES), abs=1e-9)
    assert "tok:none" in score.signature
    assert "moses" not in score.signature
    short = tokenised_bleu(["ein hund"], ["ein hund rennt ."], language="de")
    assert short.score == 0  # no three words in a row, as multi-bleu.perl has it
    assert "smooth:none" in short.signature


@pytest.mark.parametrize(
    ("language", "text", "words"),
    [
        ("de", "Der Mann (45) ruft: \u201eHalt!\u201c", "der mann ( 45 ) ruft : &quot; halt ! &quot;"),
        ("de", "\u00c4pfel, 3,5 kg z.B. & mehr ...", "\u00e4pfel , 3,5 kg z.b. &amp; mehr ..."),
        ("en", "It\u2019s John's dog-house.", "it &apos;s john &apos;s dog-house ."),
        ("fr", "L'homme n\u00b0 2 dort.", "l&apos; homme n \u00b0 2 dort ."),
        # A point before the last quote changes places with it where the line ends, as in Moses' script.
        ("de", 'Er sagt: "Ich komme."', "er sagt : &quot; ich komme &quot; ."),
    ],
)
def test_words_are_those_of_moses(language: str, text: str, words: str) -> None:
    # The expected words are what tokenizer.perl makes of the output of lowercase.perl and
    # normalize-punctuation.perl, of the revision with which Multi30k was prepared.
    assert MosesWords(language)(text) == words


@pytest.mark.parametrize("name", PUBLISHED_WORDS)
def test_words_are_those_of_the_published_files_of_multi30k(name: str, shared_data: Path) -> None:
    words = map(MosesWords(name.rpartition(".")[2]), multi30k(shared_data, name))

    assert hashlib.sha256("\n".join(words).encode("utf-8")).hexdigest() == PUBLISHED_WORDS[name]


def test_a_language_without_rules_has_the_english_ones_and_says_so() -> None:
    assert MosesWords("xx")("It's a dog.") == MosesWords("en")("It's a dog.")
    assert MosesWords("xx").signature["tok"] == "moses-en-for-xx"
    assert MosesWords("").signature["tok"] == "moses-en-for-unknown"
    assert MosesWords("pt_BR").signature["tok"] == "moses-pt"
    assert MosesWords("fra").signature["tok"] == "moses-fr"
    assert [*map(short_code, ("de", "DE-at", "zh_Hans", "", "-"))] == ["de", "de", "zh", "", ""]


def test_equal_texts_have_a_hundred() -> None:
    texts = ["Ein Mann steht am Zug.", "Zwei Kinder spielen am Strand."]

    scores = corpus_scores(texts, texts, language="de", with_tokenised_bleu=True)

    headline = headline_scores(scores)
    assert headline["bleu"] == pytest.approx(100.0)
    assert max(headline.values()) <= 100
    assert headline["bleu_tokenised"] == pytest.approx(100.0)
    assert headline["chrf"] == pytest.approx(100.0)
    assert headline["bleu_lower"] == pytest.approx(100.0)
    assert headline["length_ratio"] == 1
    assert sentence_chrf(texts, texts) == pytest.approx([100.0, 100.0])


def test_an_interval_holds_the_score_and_is_the_same_every_time() -> None:
    first, second = (
        headline_scores(corpus_scores(HYPOTHESES, REFERENCES, language="de", with_tokenised_bleu=True))
        for _ in range(2)
    )

    assert first == second
    for name in ("bleu", "chrf", "bleu_tokenised"):
        assert first[f"{name}_lower"] < first[name] < first[f"{name}_upper"]


def test_training_and_large_corpora_have_no_interval_and_one_sentence_has_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scores = corpus_scores(HYPOTHESES, REFERENCES, language="de", num_resamples=0)
    assert set(headline_scores(scores)) == {"bleu", "chrf", "length_ratio"}
    assert "bs:" not in scores.bleu.signature
    monkeypatch.setattr("vitrail.tasks.generation.MAX_RESAMPLED", 4)
    assert corpus_scores(HYPOTHESES, REFERENCES, language="de").bleu.lower is None
    assert corpus_scores(HYPOTHESES[:4], REFERENCES[:4], language="de").bleu.lower is not None
    one = corpus_scores(HYPOTHESES[:1], REFERENCES[:1], language="de").bleu
    assert one.lower == one.upper == pytest.approx(one.score, abs=1e-4)


@pytest.mark.parametrize("num_empty", [1, 5])
def test_empty_hypotheses_count_as_nothing_found(num_empty: int) -> None:
    hypotheses = [""] * num_empty + HYPOTHESES[num_empty:]

    tables = translation_tables(REFERENCES, hypotheses, REFERENCES, indices=range(5), language="de")

    headline = headline_scores(tables.scores)
    assert headline["bleu"] < bleu_of_the_paper(HYPOTHESES, REFERENCES)
    assert [sentence.chrf for sentence in tables.sentences[:num_empty]] == [0.0] * num_empty
    if num_empty == 5:
        assert set(headline.values()) == {0.0}


def test_chrf_is_that_of_the_paper() -> None:
    expected = [*map(chrf_of_the_paper, HYPOTHESES, REFERENCES)]
    assert sentence_chrf(HYPOTHESES, REFERENCES) == pytest.approx(expected, abs=1e-9)


def test_buckets_part_the_sentences_by_the_length_of_their_source() -> None:
    sources = ["a b", "a b c", "", "a b c d", "a b c d e f g"]

    buckets = bleu_by_length(
        sources, HYPOTHESES, REFERENCES, language="de", tokenised=True, bounds=(1, 3, 5, 6)
    )

    found = [(bucket.shortest, bucket.longest, bucket.count) for bucket in buckets]
    assert found == [(0, 1, 1), (2, 3, 2), (4, 5, 1), (7, None, 1)]
    assert buckets[0].bleu == pytest.approx(100.0)
    assert buckets[1].bleu == pytest.approx(bleu_of_the_paper(HYPOTHESES[:2], REFERENCES[:2]))


def test_tables_hold_every_sentence_and_survive_json() -> None:
    tables = translation_tables(["s0", "s1"], ["h0", "h1"], ["r0", "h1"], indices=[7, 3], language="de")

    assert TranslationTables.from_tree(tables.model_dump(mode="json")) == tables
    row = tables.sentences[1]
    assert (row.index, row.source, row.hypothesis, row.reference) == (3, "s1", "h1", "h1")
    assert row.chrf == 100
    assert [bucket.count for bucket in tables.buckets] == [2]


@pytest.mark.parametrize(
    ("hypotheses", "references"), [(["a"], ["a", "b"]), (["a", "b"], ["a"]), ([], []), ([], ["a"])]
)
def test_lists_that_do_not_fit_are_refused(hypotheses: list[str], references: list[str]) -> None:
    for score in (corpus_scores, tokenised_bleu):
        with pytest.raises(DataError, match=f"{len(hypotheses)} hypotheses, {len(references)} references"):
            score(hypotheses, references, language="de")
    with pytest.raises(DataError):
        sentence_chrf(hypotheses, references)
    with pytest.raises(DataError, match="1 sources"):
        translation_tables(["a"], ["a", "b"], ["a", "b"], indices=[0, 1], language="de")


@pytest.mark.parametrize("package", ["sacrebleu.metrics", "sacremoses"])
def test_a_missing_package_is_named(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)

    with pytest.raises(ConfigError, match=rf"{package.split('.')[0]}.*pip install 'vitrail\[translation\]'"):
        corpus_scores(["a"], ["a"], language="de", with_tokenised_bleu=True)


@pytest.mark.parametrize("package", ["sentencepiece", "sacrebleu.metrics"])
def test_what_a_training_needs_is_named_before_it(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = "".join(f"{number} cats\t{number} Katzen\n" for number in range(20))
    (tmp_path / "pairs.tsv").write_text("en\tde\n" + rows)
    monkeypatch.setitem(sys.modules, package, None)

    with pytest.raises(ConfigError, match=rf"{package.split('.')[0]}.*pip install 'vitrail\[translation\]'"):
        train(tmp_path / "pairs.tsv", changes={"train.steps": 1}, dry_run=True)


def test_japanese_without_its_package_counts_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sacrebleu.tokenizers.tokenizer_ja_mecab.MeCab", None)
    text = "\u72ac\u304c\u8d70\u308b\u3002"

    scores = corpus_scores([text], [text], language="ja", num_resamples=0)

    assert "tok:char" in scores.bleu.signature
    assert scores.bleu.score == pytest.approx(100.0)


def test_scores_of_a_poor_translator_have_no_interval_where_sacrebleu_fails_to_resample() -> None:
    scores = corpus_scores(["", "", "", "ein Hund rennt"], ["a", "b", "c", "ein Hund"], language="de")

    assert 0 < scores.chrf.score < 100
    assert scores.chrf.lower is None
