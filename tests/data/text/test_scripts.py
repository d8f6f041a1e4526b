"""Letters are counted by script, for each text by itself."""

from __future__ import annotations

import numpy as np
import pytest

from vitrail.data.text import scripts
from vitrail.data.text.scripts import CONTROL, SCRIPTS, SPACE, UNDECODABLE, count_characters


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


LETTERS = {
    "Latin": "az\u00e9\u1ea1\uff21",
    "Greek": "\u03b1\u1f00",
    "Cyrillic": "\u0436\u0491",
    "Armenian": "\u0561",
    "Hebrew": "\u05d0\u05b8",
    "Arabic": "\u0628\u0640\ufe8d",
    "Devanagari": "\u0915\u093f",
    "Bengali": "\u0995",
    "Gurmukhi": "\u0a15",
    "Gujarati": "\u0a95",
    "Odia": "\u0b15",
    "Tamil": "\u0b95\u0bbf",
    "Telugu": "\u0c15",
    "Kannada": "\u0c95",
    "Malayalam": "\u0d15",
    "Sinhala": "\u0d9a",
    "Thai": "\u0e01\u0e31",
    "Lao": "\u0e81",
    "Tibetan": "\u0f40",
    "Burmese": "\u1000",
    "Georgian": "\u10d0",
    "Hangul": "\uac00\u1100",
    "Ethiopic": "\u1200",
    "Khmer": "\u1780",
    "Mongolian": "\u1820",
    "Chinese or Japanese": "\u4e00\u3042\u30a2\u30fc\u3005\uff71\uf900\U00020000",
}


def test_letters_of_every_script_are_told_apart() -> None:
    assert tuple(LETTERS) == SCRIPTS
    counts = count_characters([*LETTERS.values()]).letters
    assert np.diag(counts).tolist() == [*map(len, LETTERS.values())]
    assert counts.sum() == np.trace(counts)


def test_digits_and_marks_that_all_scripts_share_are_no_letters() -> None:
    assert not count_characters(["12 \u0660 \u0301 \u3002 \u00d7 \U0001f600"]).letters.any()


def test_every_language_code_has_a_known_script() -> None:
    assert set(scripts.SCRIPT_OF_LANGUAGE.values()) <= set(SCRIPTS)
