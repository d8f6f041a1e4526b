from __future__ import annotations

import pickle
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from making.multi30k import multi30k
from vitrail.core.errors import CheckpointError, DataError
from vitrail.data.text.subwords import PairVocabulary, SentencePieceSubwords, SubwordKind, Subwords

ENGLISH = [
    "a small dog runs across the green field .",
    "two small dogs run across a field of snow",
    "A man, dressed in green, walks the dogs.",
    "the men are walking (slowly) across the street!",
    "three women walk 7 dogs & 2 cats",
]
GERMAN = [
    "ein kleiner Hund l\u00e4uft \u00fcber das gr\u00fcne Feld .",
    "zwei kleine Hunde laufen \u00fcber ein Schneefeld",
    "Ein gr\u00fcn gekleideter Mann f\u00fchrt die Hunde aus.",
    "die M\u00e4nner gehen (langsam) \u00fcber die Stra\u00dfe!",
    "drei Frauen f\u00fchren 7 Hunde & 2 Katzen aus",
]
KINDS: list[SubwordKind] = ["bpe", "unigram"]


@pytest.fixture(scope="module", params=KINDS)
def subwords(request: pytest.FixtureRequest) -> SentencePieceSubwords:
    return SentencePieceSubwords.train(ENGLISH + GERMAN, size=90, kind=request.param)


@pytest.fixture(scope="module")
def byte_pairs() -> SentencePieceSubwords:
    return SentencePieceSubwords.train(ENGLISH + GERMAN, size=120)


def test_it_meets_the_contract(subwords: SentencePieceSubwords) -> None:
    assert isinstance(subwords, Subwords)
    copy = pickle.loads(pickle.dumps(subwords))
    assert copy.to_bytes() == subwords.to_bytes()
    assert copy.encode(ENGLISH) == subwords.encode(ENGLISH)
    assert (subwords.pad_id, subwords.begin_id, subwords.end_id, subwords.unknown_id) == (0, 1, 2, 3)
    assert 80 < subwords.size <= 90  # there are only so many unigrams in a few sentences


def test_text_of_the_alphabet_comes_back_as_it_was(subwords: SentencePieceSubwords) -> None:
    texts = [*ENGLISH, *GERMAN, "M\u00e4use, 72 & Stra\u00dfen", ""]

    rows = subwords.encode(texts)

    assert subwords.decode(rows) == texts
    assert all(3 < token < subwords.size for row in rows for token in row)


@pytest.mark.parametrize("kind", KINDS)
def test_training_twice_gives_the_same_bytes_in_silence(
    kind: SubwordKind, capfd: pytest.CaptureFixture[str]
) -> None:
    for size in (60, 8000):
        first, second = (SentencePieceSubwords.train(ENGLISH, size=size, kind=kind) for _ in range(2))

        assert first.to_bytes() == second.to_bytes()
        assert first.kind == kind
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("texts", [["a"], ["ab ab", "ab"], ENGLISH], ids=["letter", "word", "sentences"])
def test_texts_with_fewer_pieces_get_a_smaller_vocabulary(texts: list[str], kind: SubwordKind) -> None:
    subwords = SentencePieceSubwords.train(texts, size=8000, kind=kind)

    assert 4 < subwords.size < 500
    assert subwords.decode(subwords.encode(texts)) == texts


@pytest.mark.parametrize("kind", KINDS)
def test_an_alphabet_too_large_for_the_vocabulary_keeps_its_most_frequent_letters(kind: SubwordKind) -> None:
    rare = "".join(chr(0x4E00 + place) for place in range(100))
    frequent = "abc"

    subwords = SentencePieceSubwords.train([frequent * 40, rare], size=40, kind=kind)

    assert subwords.size <= 40
    assert subwords.unknown_id not in subwords.encode([frequent])[0]
    assert subwords.unknown_id in subwords.encode([rare])[0]


@pytest.mark.parametrize("texts", [[], ["", "  "]], ids=["none", "blank"])
def test_nothing_cannot_be_learned_from(texts: list[str]) -> None:
    with pytest.raises(DataError, match="no text to learn subwords from"):
        SentencePieceSubwords.train(texts, size=30)


@pytest.mark.parametrize(
    "texts", [["ab " * 2000 + "z a b", "ab"], ["a \ud800 b z"]], ids=["long", "surrogate"]
)
def test_unusual_lines_are_learned_from(texts: list[str]) -> None:
    subwords = SentencePieceSubwords.train(texts, size=30)

    assert subwords.unknown_id not in subwords.encode(["z"])[0]
    assert subwords.decode(subwords.encode(["a b"])) == ["a b"]


def test_unseen_characters_become_unknown_and_the_rest_survives(subwords: SentencePieceSubwords) -> None:
    (row,) = subwords.encode(["a \u4e2d dog"])

    assert row.count(subwords.unknown_id) == 1
    (text,) = subwords.decode([row])
    assert text.split() == ["a", "\u2047", "dog"]


@pytest.mark.parametrize("text", ["<s> </s> <pad>", "\x00", "\ud800 dog", "\U0001f415", "\u2581", "\u200b"])
def test_odd_text_never_becomes_a_special_subword(subwords: SentencePieceSubwords, text: str) -> None:
    for rows in (subwords.encode([text]), subwords.encode_sampled([text], dropout=0.3, seed=5)):
        assert not {subwords.pad_id, subwords.begin_id, subwords.end_id} & set(rows[0])


def test_rows_are_written_without_special_subwords(byte_pairs: SentencePieceSubwords) -> None:
    (row,) = byte_pairs.encode(["a small dog"])
    pieces = byte_pairs.pieces(row)

    assert "".join(pieces) == "\u2581a\u2581small\u2581dog"
    assert len(pieces) == len(row)
    assert byte_pairs.decode([[1, *row, 2, 0, 0], []]) == ["a small dog", ""]
    assert byte_pairs.encode([]) == byte_pairs.decode([]) == []
    assert byte_pairs.encode_sampled([], dropout=0.5, seed=1) == []


def test_sampled_rows_are_the_same_text_cut_as_the_seed_tells(subwords: SentencePieceSubwords) -> None:
    plain = subwords.encode(ENGLISH)

    first = subwords.encode_sampled(ENGLISH, dropout=0.4, seed=3)
    other = subwords.encode_sampled(GERMAN, dropout=0.9, seed=4)

    assert first != plain
    assert subwords.decode(first) == ENGLISH
    assert subwords.encode_sampled(ENGLISH, dropout=0.4, seed=3) == first
    assert subwords.encode_sampled(ENGLISH, dropout=0.4, seed=4) != first
    assert subwords.encode_sampled(GERMAN, dropout=0.9, seed=4) == other
    assert subwords.encode_sampled(ENGLISH, dropout=0.0, seed=1) == plain


@pytest.mark.parametrize("seed", [0, 2**32 - 2, 2**32 - 1, 2**62])
def test_every_seed_repeats_itself(byte_pairs: SentencePieceSubwords, seed: int) -> None:
    first = byte_pairs.encode_sampled(ENGLISH, dropout=0.5, seed=seed)
    byte_pairs.encode_sampled(ENGLISH, dropout=0.5, seed=17)

    assert byte_pairs.encode_sampled(ENGLISH, dropout=0.5, seed=seed) == first


def test_threads_do_not_disturb_each_others_draws(byte_pairs: SentencePieceSubwords) -> None:
    seeds = list(range(40))
    alone = [byte_pairs.encode_sampled(ENGLISH, dropout=0.4, seed=seed) for seed in seeds]

    with ThreadPoolExecutor(max_workers=5) as pool:
        together = list(
            pool.map(lambda seed: byte_pairs.encode_sampled(ENGLISH, dropout=0.4, seed=seed), seeds)
        )

    assert together == alone


def test_another_process_draws_the_same(byte_pairs: SentencePieceSubwords, tmp_path: Path) -> None:
    (tmp_path / "subwords.model").write_bytes(byte_pairs.to_bytes())
    program = (
        "import pathlib, sys; from vitrail.data.text.subwords import SentencePieceSubwords as S;"
        "s = S(pathlib.Path(sys.argv[1]).read_bytes());"
        "print(s.encode_sampled(['three women walk 7 dogs'], dropout=0.4, seed=11))"
    )

    written = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "subwords.model")],
        capture_output=True,
        text=True,
        check=True,
    )

    assert written.stdout.strip() == str(
        byte_pairs.encode_sampled(["three women walk 7 dogs"], dropout=0.4, seed=11)
    )
    assert written.stderr == ""


def test_more_dropout_makes_longer_rows(byte_pairs: SentencePieceSubwords) -> None:
    lengths = [
        sum(map(len, byte_pairs.encode_sampled(ENGLISH * 20, dropout=dropout, seed=2)))
        for dropout in (0.0, 0.1, 0.3, 0.9)
    ]

    assert lengths == sorted(set(lengths))


@pytest.mark.parametrize("content", [b"", b"no model", b"\x00" * 100], ids=["empty", "text", "zeros"])
def test_bytes_that_are_no_model_are_refused(content: bytes) -> None:
    with pytest.raises(CheckpointError, match="not a usable vocabulary"):
        SentencePieceSubwords(content)


def test_joint_vocabulary_is_one_object_also_after_a_journey() -> None:
    vocabulary = PairVocabulary.train(ENGLISH, GERMAN, size=90)

    stored = PairVocabulary.from_files(vocabulary.to_files())
    copied = pickle.loads(pickle.dumps(vocabulary))

    assert vocabulary.is_joint
    assert stored.is_joint
    assert copied.is_joint
    assert stored.to_files() == copied.to_files() == vocabulary.to_files()


def test_separate_vocabularies_know_their_language_alone() -> None:
    vocabulary = PairVocabulary.train(ENGLISH, GERMAN, size=60, kind="unigram", is_joint=False)

    stored = PairVocabulary.from_files(vocabulary.to_files())

    assert not stored.is_joint
    assert stored.source.unknown_id in stored.source.encode(["\u00fc"])[0]
    assert stored.target.unknown_id not in stored.target.encode(["\u00fc"])[0]


def test_missing_vocabulary_files_are_named() -> None:
    files = PairVocabulary.train(ENGLISH, GERMAN, size=60, is_joint=False).to_files()
    missing = sorted(files)[0]

    with pytest.raises(CheckpointError, match=missing):
        PairVocabulary.from_files({name: files[name] for name in files if name != missing})


def test_multi30k_survives_and_is_sampled_fast(shared_data: Path) -> None:
    training = [line for name in ("train.en", "train.de") for line in multi30k(shared_data, name)[::3]]
    subwords = SentencePieceSubwords.train(training, size=2000)
    batch = [" ".join(line.split()) for line in multi30k(shared_data, "val.de")[:300]]

    rows = subwords.encode(batch)
    sampled = [subwords.encode_sampled(batch, dropout=0.1, seed=seed) for seed in range(9)]
    start = time.process_time()
    again = subwords.encode_sampled(batch, dropout=0.1, seed=8)
    seconds = time.process_time() - start

    assert subwords.size == 2000
    assert subwords.decode(rows) == subwords.decode(again) == batch
    assert again == sampled[8]
    assert 1.1 < sum(map(len, again)) / sum(map(len, rows)) < 1.3  # 1.2 in Provilkov et al.
    assert seconds < 0.1  # about 3 ms on a core of its own
