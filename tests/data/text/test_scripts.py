"""Letters are counted by script, for each text by itself."""

from __future__ import annotations

import unicodedata

import pytest

from vitrail.data.text import scripts
from vitrail.data.text.scripts import BLOCKS, CONTROL, SCRIPTS, SPACE, UNDECODABLE, count_characters


def test_texts_of_several_scripts_are_counted_apart() -> None:
    counts = count_characters(["a \u0436b", "", "\u4e00\U00020000\U0001f600"])
    assert counts.lengths.tolist() == [4, 0, 3]
    assert counts.letters[:, SCRIPTS.index("Latin")].tolist() == [2, 0, 0]
    assert counts.letters[:, SCRIPTS.index("Cyrillic")].tolist() == [1, 0, 0]
    assert counts.letters[:, SCRIPTS.index("Chinese or Japanese")].tolist() == [0, 0, 2]
    assert counts.classes.sum(axis=1).tolist() == [4, 0, 3]
    assert counts.words.tolist() == [2, 1, 1]


def test_spaces_controls_and_undecodable_characters_have_classes() -> None:
    counts = count_characters(["\t \u00a0\u3000", "\x00\x0c\u2028", "\ufffd\ud800"])
    assert counts.classes[0, SPACE] == 4
    assert counts.classes[1, CONTROL] == 3
    assert counts.classes[2, UNDECODABLE] == 2


def test_chunks_do_not_change_the_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["ab", "", "\u0436", "c d"] * 3
    whole = count_characters(texts)
    monkeypatch.setattr(scripts, "CHUNK", 5)
    assert (count_characters(texts).classes == whole.classes).all()


@pytest.mark.parametrize(
    "script", [name for name in SCRIPTS if " " not in name and name not in {"Burmese", "Odia"}]
)
def test_letters_of_a_block_are_named_after_it_in_the_unicode_data(script: str) -> None:
    # the names of blocks and of letters agree but for combining marks and signs shared by scripts
    letters = [
        chr(code)
        for first, last in BLOCKS[script]
        for code in range(first, last + 1)
        if unicodedata.category(chr(code)) in {"Lu", "Ll", "Lo"}
    ]
    named = [letter for letter in letters if script.upper() in unicodedata.name(letter)]
    assert len(letters) >= 30
    assert len(named) >= 0.9 * len(letters)


def test_every_language_code_has_a_known_script() -> None:
    assert set(scripts.SCRIPT_OF_LANGUAGE.values()) <= set(SCRIPTS)
