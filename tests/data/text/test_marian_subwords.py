"""Marian's subwords number text as transformers' MarianTokenizer does."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
import torch
from transformers import MarianTokenizer

from making.marian_folder import TARGET_SYLLABLES, made_up_sentences, write_marian_vocabulary
from vitrail.core.errors import CheckpointError
from vitrail.data.text.marian_subwords import MarianSubwords, SpecialIds, read_numbers
from vitrail.data.text.subwords import PairVocabulary, Subwords

UNUSUAL = [
    "",
    " ",
    "  bake   limo ",
    "bake\tlimo\r\n",
    "bake\u00a0limo\u3000nu",
    "ba\u200bke\u2028limo",
    "\u00e4r bo, dr\u00fcel! Gu\u00df?",
    "a\u0308r e\u0301",  # letters and their accents apart
    "\ufb01 \u2460 \u00bd",  # characters that normalisation takes apart
    "\u4f60\u597d bake \U0001f600",
    "BAKE 1234 (limo) <ba> & </ba>",
    "\u2581bake\u2581",
    "bakelimonura" * 30,
    "x" * 200,
    "\ud800 bake",  # half of a surrogate pair
]


@pytest.fixture(scope="module", params=["shared", "separate"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("marian") / request.param
    write_marian_vocabulary(folder, is_shared=request.param == "shared", codes=(">>deu<<", ">>fra<<"))
    return folder


@pytest.fixture(scope="module")
def theirs(folder: Path) -> MarianTokenizer:
    return MarianTokenizer.from_pretrained(folder)


@pytest.fixture(scope="module")
def ours(folder: Path) -> PairVocabulary:
    sides = []
    for pieces, name in (("source.spm", "vocab.json"), ("target.spm", "target_vocab.json")):
        path = folder / name if (folder / name).is_file() else folder / "vocab.json"
        numbers = read_numbers(path.read_bytes())
        pad = numbers["<pad>"]
        specials = SpecialIds(pad, pad, numbers["</s>"], numbers["<unk>"])
        sides.append(MarianSubwords((folder / pieces).read_bytes(), numbers, specials))
    return PairVocabulary(*sides)


def test_texts_are_numbered_as_transformers_does(ours, theirs):
    assert isinstance(ours.source, Subwords)
    assert not ours.is_joint
    sources = made_up_sentences(200, seed=5) + UNUSUAL[:-1]  # Rust strings cannot hold the last
    targets = made_up_sentences(200, seed=6, syllables=TARGET_SYLLABLES) + UNUSUAL[:-1]

    for side, texts, expected in (
        (ours.source, sources, theirs(sources)["input_ids"]),
        (ours.target, targets, theirs(text_target=targets)["input_ids"]),
    ):
        assert [[*row, side.end_id] for row in side.encode(texts)] == expected
    assert ours.source.encode(["\ud800 bake"]) == ours.source.encode(["? bake"])


def test_outputs_are_written_as_transformers_does(ours, theirs):
    generator = torch.Generator().manual_seed(0)
    rows = [torch.randint(ours.target.size, (length,), generator=generator).tolist() for length in range(40)]
    rows += ours.target.encode(UNUSUAL)

    assert ours.target.decode(rows) == theirs.batch_decode(rows, skip_special_tokens=True)


def test_a_language_code_that_is_known_is_one_subword(ours, theirs):
    texts = [">>deu<< bake limo", ">>fra<<bake", ">>fra<<", "bake >>fra<< limo"]
    rows = ours.source.encode(texts)

    assert [[*row, ours.source.end_id] for row in rows] == theirs(texts)["input_ids"]
    assert ours.source.pieces(rows[0])[0] == ">>deu<<"


def test_text_never_becomes_a_special_number(ours, theirs):
    rows = ours.source.encode(["bake </s> limo <pad>"])
    specials = {ours.source.pad_id, ours.source.end_id}

    assert not specials & set(rows[0])
    assert specials <= set(theirs("bake </s> limo <pad>")["input_ids"])  # the difference is wanted


def test_drawn_segmentations_depend_on_the_seed_alone(ours):
    texts = [">>deu<< " + text for text in made_up_sentences(20, seed=7)]
    first = ours.source.encode_sampled(texts, dropout=0.3, seed=1)

    assert first == ours.source.encode_sampled(texts, dropout=0.3, seed=1)
    assert first != ours.source.encode_sampled(texts, dropout=0.3, seed=2)
    assert ours.source.encode_sampled(texts, dropout=0.0, seed=1) == ours.source.encode(texts)
    assert ours.source.decode(first) == ours.source.decode(ours.source.encode(texts))


def test_stored_files_give_the_same_subwords(ours):
    files = ours.to_files()
    again = PairVocabulary.from_files(files)
    texts = made_up_sentences(20, seed=8) + UNUSUAL

    for side in ("source", "target"):
        before, after = getattr(ours, side), getattr(again, side)
        assert after.encode(texts) == before.encode(texts)
        assert (after.size, after.pad_id, after.begin_id) == (before.size, before.pad_id, before.begin_id)
        assert (after.end_id, after.unknown_id) == (before.end_id, before.unknown_id)
    assert again.to_files() == files
    assert pickle.loads(pickle.dumps(ours.target)).encode(UNUSUAL) == ours.target.encode(UNUSUAL)


def test_gaps_of_the_numbering_are_shown_and_not_written(ours):
    numbers = {piece: number for piece, number in ours.source.numbers.items() if number != 7}
    gapped = MarianSubwords(ours.source.model, numbers, ours.source.specials)

    assert gapped.size == ours.source.size
    assert gapped.pieces([7]) == ["<7>"]
    assert gapped.decode([[7, 8]]) == ours.source.decode([[8]])


def test_damaged_vocabularies_are_refused(ours):
    model, numbers, specials = ours.source.model, ours.source.numbers, ours.source.specials
    with pytest.raises(CheckpointError, match="share a number"):
        MarianSubwords(model, {**numbers, "twice": 5}, specials)
    with pytest.raises(CheckpointError, match="exceed"):
        MarianSubwords(model, numbers, specials._replace(pad_id=len(numbers)))
    with pytest.raises(CheckpointError, match="cannot be read"):
        MarianSubwords(b"no model", numbers, specials)
    with pytest.raises(CheckpointError, match="not JSON"):
        read_numbers(b"\xff")
    with pytest.raises(CheckpointError, match="no numbers"):
        read_numbers(json.dumps(["a", "b"]).encode())
    files = ours.to_files()
    del files["target.spm"]
    with pytest.raises(CheckpointError, match=r"target\.spm missing"):
        PairVocabulary.from_files(files)
