"""Subwords of published CLIPs are those of transformers, and survive being stored."""

from __future__ import annotations

import copy
import json
import pickle

import pytest

from making.clip_folder import MERGES, clip_numbers, clip_tokenizer
from vitrail.core.errors import CheckpointError, ConfigError, DataError
from vitrail.data.text.clip_subwords import CLIPSubwords, from_published
from vitrail.data.text.rows import bounded_row, join_rows, strict_rows
from vitrail.data.text.subwords import Subwords, vocabulary_from_files, vocabulary_to_files

TEXTS = ["A photo of a CAT.", "dogs' dog's  don't\tdo 2026", "na\u00efve caf\u00e9 \u4f60\u597d \U0001f600!?"]


@pytest.fixture
def subwords() -> CLIPSubwords:
    return CLIPSubwords(clip_numbers(), MERGES)


def test_texts_are_cut_as_by_transformers(subwords: CLIPSubwords) -> None:
    expected = clip_tokenizer()(TEXTS)["input_ids"]

    assert [[subwords.begin_id, *row, subwords.end_id] for row in subwords.encode(TEXTS)] == expected
    assert isinstance(subwords, Subwords)


def test_words_come_back_in_lower_case(subwords: CLIPSubwords) -> None:
    rows = subwords.encode(["A photo of na\u00efve CATS"])

    assert subwords.decode([[subwords.begin_id, *rows[0], subwords.end_id]]) == ["a photo of na\u00efve cats"]
    assert subwords.pieces(subwords.encode(["cat"])[0]) == ["cat</w>"]


def test_text_never_becomes_a_special_number(subwords: CLIPSubwords) -> None:
    (row,) = subwords.encode(["<|endoftext|> a cat"])

    assert subwords.end_id not in row
    assert subwords.begin_id not in row


def test_both_layouts_give_the_same_subwords(subwords: CLIPSubwords) -> None:
    lines = "#version: 0.2\n" + "\n".join(" ".join(pair) for pair in MERGES) + "\n"
    separate = {"vocab.json": json.dumps(clip_numbers()).encode(), "merges.txt": lines.encode()}
    together = {"tokenizer.json": clip_tokenizer().backend_tokenizer.to_str().encode()}

    for files in (separate, together):
        assert from_published(files).encode(TEXTS) == subwords.encode(TEXTS)


def test_they_travel_and_are_stored(subwords: CLIPSubwords) -> None:
    assert pickle.loads(pickle.dumps(subwords)).encode(TEXTS) == subwords.encode(TEXTS)
    again = vocabulary_from_files(copy.deepcopy(vocabulary_to_files(subwords)))
    assert again.encode(TEXTS) == subwords.encode(TEXTS)
    assert (again.begin_id, again.end_id, again.size) == (subwords.begin_id, subwords.end_id, subwords.size)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "neither tokenizer.json nor vocab.json"),
        ({"vocab.json": b"{}", "merges.txt": b""}, "lack <|startoftext|>"),
        ({"tokenizer.json": b'{"model": 3}'}, "cannot be read"),
        ({"tokenizer.json": b"\xff"}, "cannot be read"),
    ],
)
def test_damaged_files_are_refused(files: dict[str, bytes], message: str) -> None:
    with pytest.raises(CheckpointError, match=message.replace("|", r"\|")):
        from_published(files)


def test_random_subwords_are_refused(subwords: CLIPSubwords) -> None:
    with pytest.raises(ConfigError, match="drawn at random"):
        subwords.encode_sampled(TEXTS, dropout=0.1, seed=3)
    assert subwords.encode_sampled(TEXTS, dropout=0.0, seed=3) == subwords.encode(TEXTS)


def test_rows_stand_between_begin_and_end_and_are_filled_up(subwords: CLIPSubwords) -> None:
    rows = strict_rows(["cat", "a photo of cat"], subwords, max_length=9)
    tokens, lengths = join_rows(rows, pad_id=subwords.pad_id)

    assert lengths.tolist() == [3, 6]
    assert tokens[0].tolist()[3:] == [subwords.pad_id] * 3
    assert [(row[0], row[-1]) for row in rows] == [(subwords.begin_id, subwords.end_id)] * 2


def test_a_long_text_is_cut_before_its_end(subwords: CLIPSubwords) -> None:
    assert bounded_row(range(20), subwords, 6) == [subwords.begin_id, 0, 1, 2, 3, subwords.end_id]


@pytest.mark.parametrize(("text", "message"), [(" ", "holds no word"), ("cat " * 8, "has 8 subwords")])
def test_texts_without_words_and_long_ones_are_refused(
    subwords: CLIPSubwords, text: str, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        strict_rows(["cat", text], subwords, max_length=9)
