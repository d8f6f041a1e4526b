"""Words of captions, as scores count them: lower-case, without punctuation, contractions cut."""

from __future__ import annotations

import re
from collections.abc import Sequence

QUOTES = str.maketrans({"\u2018": "'", "\u2019": "'", "\u02bc": "'"})
NOT = re.compile(r"(?<=\w)n't\b")
WORD = re.compile(r"n't\b|'(?:s|re|ve|ll|d|m)\b|\d+(?:[.,]\d+)+|\w+(?:-\w+)*")


def caption_words(text: str) -> list[str]:
    """Cut a caption into words, near the way in which the scores of COCO's captions do it.

    Letters become lower-case, punctuation is dropped, ``dog's`` and ``isn't`` are cut as in the Penn
    Treebank, words with hyphens and numbers stay whole.

    Source: Chen et al. 2015 (Microsoft COCO Captions), section 4.1; its tokenizer is a Java program, and the
    rules here are ours.

    >>> caption_words("A man's T-shirt isn't 3.5 feet long .")
    ['a', 'man', "'s", 't-shirt', 'is', "n't", '3.5', 'feet', 'long']
    """
    plain = NOT.sub(" n't", text.translate(QUOTES).lower())
    return WORD.findall(plain)


def join_words(words: Sequence[str]) -> str:
    """Write words as a text, contractions joined again.

    >>> join_words(["the", "dog", "'s", "ball", "is", "n't", "red"])
    "the dog's ball isn't red"
    """
    return re.sub(r" (?=(?:n't|'(?:s|re|ve|ll|d|m))\b)", "", " ".join(words))
