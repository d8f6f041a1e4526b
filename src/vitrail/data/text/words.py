"""Words of captions, as scores count them: lower-case, without punctuation, contractions cut."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Self

from vitrail.core.errors import DataError
from vitrail.data.text.subword_sampling import SPACE
from vitrail.data.text.subwords import BEGIN_ID, END_ID, PAD_ID, UNKNOWN_ID, unusable

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


FORM = "a JSON list of words"
SPECIALS = ("<pad>", "<s>", "</s>", "<unk>")  # in the order of their ids


class WordVocabulary:
    """Words by frequency, behind the ids of padding, begin, end and unknown; a ``Subwords``."""

    file = "words.json"
    pad_id, begin_id, end_id, unknown_id = PAD_ID, BEGIN_ID, END_ID, UNKNOWN_ID

    def __init__(self, words: Sequence[str]) -> None:
        self.words = tuple(words)
        self._numbers = {word: number for number, word in enumerate(words, start=len(SPECIALS))}

    @classmethod
    def train(cls, texts: Iterable[str], *, size: int, min_count: int = 1) -> Self:
        """Take the most frequent words; of equal frequency, the first in alphabetical order.

        Args:
            texts: captions, prepared as for encoding.
            size: number of words, including special tokens; fewer if the texts do not have as many.
            min_count: how often a word must occur.

        Raises:
            DataError: no word occurs so often.
        """
        counts = Counter(word for text in texts for word in text.split())
        ranked = sorted((word for word in counts if counts[word] >= min_count), key=lambda w: (-counts[w], w))
        kept = ranked[: max(size - len(SPECIALS), 0)]
        if not kept:
            raise DataError(
                f"none of {len(counts)} words occurs {min_count} times in the training captions",
                expected="captions with words that repeat, and a vocabulary with room for them",
                remedy="Lower data.min_count, or raise data.vocabulary_size",
            )
        return cls(kept)

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        """Read what ``to_bytes`` returned; ``CheckpointError`` if it holds something else."""
        words = json.loads(content)
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise unusable("it holds no list of words", FORM)
        return cls(words)

    def to_bytes(self) -> bytes:
        return json.dumps(list(self.words), ensure_ascii=False).encode("utf-8", "surrogatepass")

    @property
    def size(self) -> int:
        return len(SPECIALS) + len(self.words)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        return [[self._numbers.get(word, UNKNOWN_ID) for word in text.split()] for text in texts]

    def encode_sampled(self, texts: Sequence[str], *, dropout: float, seed: int) -> list[list[int]]:
        """Make each word unknown with probability ``dropout``, as a function of the arguments alone.

        Paper: Bowman et al. 2016, Generating Sentences from a Continuous Space, section 3.1 (word dropout).
        """
        drawn = random.Random(seed)
        return [
            [UNKNOWN_ID if drawn.random() < dropout else number for number in row]
            for row in self.encode(texts)
        ]

    def decode(self, rows: Sequence[Sequence[int]]) -> list[str]:
        first = len(SPECIALS)
        return [" ".join(self.words[number - first] for number in row if number >= first) for row in rows]

    def pieces(self, row: Sequence[int]) -> list[str]:
        """Return each word of a row behind a low line (U+2581), special tokens by name."""
        first = len(SPECIALS)
        return [SPECIALS[number] if number < first else SPACE + self.words[number - first] for number in row]
