"""Words and their tokens, of texts and of what a model wrote."""

from __future__ import annotations

from pathlib import Path

import pytest

from making.marian_folder import write_marian_vocabulary
from making.small_translators import ENGLISH, GERMAN, small_vocabulary
from vitrail.data.text.marian_subwords import MarianSubwords, SpecialIds
from vitrail.data.text.subwords import SentencePieceSubwords
from vitrail.data.text.word_groups import END, words_of_text, words_of_tokens


def test_subwords_of_each_word_are_those_of_the_whole_caption() -> None:
    subwords = SentencePieceSubwords.train(["a red dog runs", "two reddish dogs run"] * 3, size=40)
    text = "a doggish xylo"

    found = words_of_text(subwords, text)

    assert list(found.tokens) == subwords.encode([text])[0]
    assert found.words == ("a", "doggish", "xylo", END)
    assert [step for steps in found.steps for step in steps] == list(range(len(found.tokens) + 1))
    assert found.unknown == (2,)


def test_tokens_that_a_model_wrote_are_joined_to_its_words() -> None:
    subwords = SentencePieceSubwords.train(["a red dog runs", "two reddish dogs run"] * 3, size=40)
    tokens = subwords.encode(["two reddogs"])[0]

    found = words_of_tokens(subwords, tokens)

    assert found.words == ("two", "reddogs", END)
    assert found.unknown == ()
    assert found.steps[-1] == (len(tokens),)


@pytest.mark.parametrize("text", [*ENGLISH, *GERMAN])
def test_a_text_and_its_tokens_have_the_same_words(text: str) -> None:
    subwords = small_vocabulary().source
    (row,) = subwords.encode([text])

    written = words_of_tokens(subwords, row, marks_apart=True)

    assert written == words_of_text(subwords, text, marks_apart=True)
    assert written.words == (*text.removesuffix(".").split(), ".", END)
    assert words_of_tokens(subwords, row).words == (*text.split(), END)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("(dogs).", ("(", "dogs", ").")),
        ("it's 3.5 , so", ("it's", "3.5", ",", "so")),
        (". . .", (".", ".", ".")),
        ("", ()),
    ],
)
def test_only_marks_at_the_ends_of_a_word_stand_apart(text: str, words: tuple[str, ...]) -> None:
    letters = SentencePieceSubwords.train(["(dogs). it's 3.5 , so . ."] * 3, size=60)
    (row,) = letters.encode([text])

    assert words_of_tokens(letters, row, marks_apart=True).words == (*words, END)
    found = words_of_text(letters, text, marks_apart=True)
    assert found.words == (*words, END)
    assert [step for steps in found.steps for step in steps] == list(range(len(row) + 1))


def test_words_of_a_marian_model_begin_with_its_language_code(tmp_path: Path) -> None:
    (numbers,) = write_marian_vocabulary(tmp_path / "marian", is_shared=True, codes=(">>fra<<",))
    specials = SpecialIds(numbers["<pad>"], numbers["<pad>"], numbers["</s>"], numbers["<unk>"])
    subwords = MarianSubwords((tmp_path / "marian" / "source.spm").read_bytes(), numbers, specials)
    (row,) = subwords.encode([">>fra<< bakelimonu ratosi."])

    found = words_of_text(subwords, ">>fra<< bakelimonu ratosi.", marks_apart=True)

    assert found.words == (">>fra<<", "bakelimonu", "ratosi", ".", END)
    assert found == words_of_tokens(subwords, row, marks_apart=True)
    assert len(found.tokens) > 4
