"""Writing systems: count the letters of each script, for many texts at once."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
from jaxtyping import Int64

CHUNK = 20_000  # texts counted together; bounds the memory

SPACE, UNDECODABLE, CONTROL = 1, 2, 3  # classes of characters; 0 is everything else, scripts follow

MARKUP = re.compile(r"</?[A-Za-z][^<>]{0,200}>|<!--|&(?:[A-Za-z]{2,8}|#\d{1,6}|#[xX][0-9A-Fa-f]{1,5});")
# UTF-8 read as Latin-1 or Windows-1252: a letter of the first byte, and a sign of each further one. Only
# letters are listed that such text has often and sound text hardly before these signs.
_SIGNS = "\u0080-\u00bf\u0152\u0153\u0160\u0161\u0178\u017d\u017e\u0192\u02c6\u02dc\u2013-\u203a\u20ac\u2122"
MOJIBAKE = re.compile(
    f"[\u00c2-\u00f4][\u0080-\u009f]|[\u00c2\u00c3][{_SIGNS}]|\u00e2[\u0080\u20ac][{_SIGNS}]|"
    f"(?:[\u00d0\u00d1][{_SIGNS}]){{2}}"
)

_CODES = {
    "Latin": "af ca cs cy da de en es et eu fi fo fr ga gl hr ht hu id is it lb lt "  # codespell:ignore fo
    "lv ms mt nb nl nn no pl pt ro sk sl so sq sv sw tl tr vi",
    "Greek": "el",
    "Cyrillic": "be bg mk ru uk",
    "Armenian": "hy",
    "Hebrew": "he iw yi",
    "Arabic": "ar fa ps ug ur",
    "Devanagari": "hi mr ne",
    "Bengali": "as bn",
    "Gurmukhi": "",
    "Gujarati": "gu",
    "Odia": "or",
    "Tamil": "ta",
    "Telugu": "te",  # codespell:ignore te
    "Kannada": "kn",
    "Malayalam": "ml",
    "Sinhala": "si",
    "Thai": "th",
    "Lao": "lo",
    "Tibetan": "bo dz",
    "Burmese": "my",
    "Georgian": "ka",
    "Hangul": "ko",
    "Ethiopic": "am ti",
    "Khmer": "km",
    "Mongolian": "",
    "Chinese or Japanese": "ja zh",  # one, as every Japanese sentence mixes them
}
SCRIPTS = tuple(_CODES)
NUM_CLASSES = 1 + CONTROL + len(SCRIPTS)
UNICODE_NAMES = {  # of letters, where another word than the script's stands in them
    "Burmese": ("MYANMAR",),
    "Chinese or Japanese": ("CJK", "IDEOGRAPHIC", "HIRAGANA", "KATAKANA", "BOPOMOFO"),
    "Odia": ("ORIYA",),
}
SCRIPT_OF_LANGUAGE = {code: script for script, codes in _CODES.items() for code in codes.split()}
"""The script of languages that are written in only one."""


class Characters(NamedTuple):
    """Character counts of some texts; one row or number per text."""

    lengths: Int64[np.ndarray, " texts"]
    classes: Int64[np.ndarray, "texts classes"]
    """Counts by class: others, ``SPACE``, ``UNDECODABLE``, ``CONTROL``, then ``SCRIPTS``."""

    @property
    def words(self) -> Int64[np.ndarray, " texts"]:
        """Parts between spaces."""
        return self.classes[:, SPACE] + 1

    @property
    def letters(self) -> Int64[np.ndarray, "texts scripts"]:
        return self.classes[:, CONTROL + 1 :]


def count_characters(texts: Sequence[str]) -> Characters:
    """Count the classes of the characters of each text.

    >>> counts = count_characters(["ab c", "\u0436"])
    >>> counts.lengths.tolist(), counts.letters[:, SCRIPTS.index("Cyrillic")].tolist()
    ([4, 1], [0, 1])
    """
    lengths = np.fromiter(map(len, texts), dtype=np.int64, count=len(texts))
    classes = np.zeros((len(texts), NUM_CLASSES), dtype=np.int64)
    for start in range(0, len(texts), CHUNK):
        part = slice(start, start + CHUNK)
        classes[part] = _count("".join(texts[part]), lengths[part])
    return Characters(lengths, classes)


def _count(joined: str, lengths: np.ndarray) -> np.ndarray:
    codes = np.frombuffer(joined.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    # beyond the table lie emoji, mathematics and rare scripts, and three planes of Chinese characters
    found = _class_of_code()[np.minimum(codes, 0xFFFF)]
    if (codes > 0xFFFF).any():
        found = np.where((codes >= 0x20000) & (codes <= 0x3FFFF), NUM_CLASSES - 1, found)
    rows = np.repeat(np.arange(len(lengths)) * NUM_CLASSES, lengths)
    return np.bincount(rows + found, minlength=len(lengths) * NUM_CLASSES).reshape(-1, NUM_CLASSES)


@cache
def _class_of_code() -> np.ndarray:
    table = np.zeros(0x10000, dtype=np.int64)
    class_of = {
        word: number
        for number, script in enumerate(SCRIPTS, start=CONTROL + 1)
        for word in UNICODE_NAMES.get(script, (script.upper(),))
    }
    for code, letter in enumerate(map(chr, range(len(table)))):
        if unicodedata.category(letter)[0] in "LM":  # letters and what is set on them
            words = re.split("[ -]", unicodedata.name(letter, ""))
            table[code] = next((class_of[word] for word in words if word in class_of), 0)
    for code in (*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029, 0xFEFF):
        table[code] = CONTROL
    for code in (0x09, 0x20, 0xA0, 0x1680, *range(0x2000, 0x200C), 0x202F, 0x205F, 0x3000):
        table[code] = SPACE
    table[0xFFFD] = UNDECODABLE
    table[0xD800:0xE000] = UNDECODABLE  # surrogates
    return table
