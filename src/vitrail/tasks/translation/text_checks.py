"""Text checks of one side: damaged encodings, markup, unexpected scripts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from vitrail.data.findings import Finding, number_of
from vitrail.data.text.scripts import CONTROL, SCRIPT_OF_LANGUAGE, SCRIPTS
from vitrail.tasks.translation.inspection import ExaminedPairs

MIN_LETTERS = 4  # of another script, so that a name or a sign does not count
MARKUP = re.compile(r"</?[A-Za-z][^<>]{0,200}>|<!--|&(?:[A-Za-z]{2,8}|#\d{1,6}|#[xX][0-9A-Fa-f]{1,5});")
# UTF-8 read as Latin-1 or Windows-1252: a letter of the first byte, and a sign of each further one. Only
# letters are listed that such text has often and sound text hardly before these signs.
_SIGNS = "\u0080-\u00bf\u0152\u0153\u0160\u0161\u0178\u017d\u017e\u0192\u02c6\u02dc\u2013-\u203a\u20ac\u2122"
MOJIBAKE = re.compile(
    f"[\u00c2\u00c3][{_SIGNS}]|\u00e2[\u0080\u20ac][{_SIGNS}]|(?:[\u00d0\u00d1][{_SIGNS}]){{2}}"
)


def find_encoding_damage(examined: ExaminedPairs) -> Iterator[Finding]:
    """UTF-8 that was decoded with another encoding, and control characters."""
    damaged: list[str] = []
    controls: list[str] = []
    for side in examined.sides:
        is_damaged = _matches(side.texts, lambda text: not text.isascii() and bool(MOJIBAKE.search(text)))
        damaged += side.items(is_damaged & side.is_usable)
        controls += side.items((side.characters.classes[:, CONTROL] > 0) & side.is_usable)
    if damaged:
        yield Finding(
            "warning",
            "mojibake",
            f"{number_of(len(damaged), 'sentence')} with UTF-8 that was taken for another encoding",
            "Repair them (the package ftfy does), or remove the lines on both sides",
            tuple(damaged),
        )
    if controls:
        yield Finding(
            "warning",
            "control-characters",
            f"{number_of(len(controls), 'sentence')} with control characters or line separators",
            "Remove these characters; they are no part of a sentence",
            tuple(controls),
        )


def find_other_scripts(examined: ExaminedPairs) -> Iterator[Finding]:
    """Sides in an unexpected script for their language, and sentences in another script than their side."""
    for language, script in examined.script_of.items():
        expected = SCRIPT_OF_LANGUAGE.get(re.split("[-_]", language)[0], script)
        if expected != script:
            yield Finding(
                "warning",
                "unexpected-script",
                f"the side named {language} is written in {script}, not in {expected}",
                "See whether the sides are exchanged, or the files of another language",
                (language,),
            )
        items: list[str] = []
        for side in examined.sides:
            if side.language == language:
                letters = side.characters.letters
                others = letters.sum(axis=1) - letters[:, SCRIPTS.index(script)]
                items += side.items(
                    (others >= MIN_LETTERS) & (2 * others > letters.sum(axis=1)) & side.is_usable
                )
        if items:
            yield Finding(
                "warning",
                "other-script",
                f"{number_of(len(items), 'sentence')} of the {language} side in another script than {script}",
                "See whether they are of another language; remove such lines on both sides",
                tuple(items),
            )


def find_markup(examined: ExaminedPairs) -> Iterator[Finding]:
    """Tags and character references of HTML or XML."""
    items: list[str] = []
    for side in examined.sides:
        has_markup = _matches(
            side.texts, lambda text: ("<" in text or "&" in text) and bool(MARKUP.search(text))
        )
        items += side.items(has_markup & side.is_usable)
    if items:
        yield Finding(
            "warning",
            "markup",
            f"{number_of(len(items), 'sentence')} with tags or character references (<b>, &amp;)",
            "Remove tags and resolve references on both sides, unless translations shall have them",
            tuple(items),
        )


def _matches(texts: Sequence[str], is_match: Callable[[str], bool]) -> np.ndarray:
    return np.fromiter(map(is_match, texts), dtype=bool, count=len(texts))
