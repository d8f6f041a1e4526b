"""The words of a caption, and which steps of a decoder write each of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from vitrail.data.text.subwords import Subwords

SPACE = "\u2581"  # begins the pieces of a new word
END = "(end)"


class CaptionWords(NamedTuple):
    """The words of a caption and their tokens; step i writes token i, and the last step the end."""

    tokens: tuple[int, ...]
    """Of the whole caption, without begin and end."""
    words: tuple[str, ...]
    """Each word, and the end after them."""
    steps: tuple[tuple[int, ...], ...]
    """Which steps write each of ``words``; at least one."""
    unknown: tuple[int, ...]
    """Places in ``words`` of those that the vocabulary lacks, as a whole or in part."""


def words_of_text(vocabulary: Subwords, text: str) -> CaptionWords:
    """Cut a caption that somebody wrote; its words stay as they are, known or not.

    Args:
        vocabulary: the tokens of captions.
        text: prepared, with spaces between words.

    >>> from vitrail.data.text.word_vocabulary import WordVocabulary
    >>> found = words_of_text(WordVocabulary(["a", "dog"]), "a cat")
    >>> found.words, found.steps, found.unknown
    (('a', 'cat', '(end)'), ((0,), (1,), (2,)), (1,))
    """
    words = text.split()
    tokens: list[int] = []
    written: list[str] = []
    steps: list[tuple[int, ...]] = []
    unknown: list[int] = []
    for word, row in zip(words, vocabulary.encode(words), strict=True):
        if not row:  # nothing but signs that a vocabulary takes for spaces
            continue
        if vocabulary.unknown_id in row:
            unknown.append(len(written))
        written.append(word)
        steps.append(tuple(range(len(tokens), len(tokens) + len(row))))
        tokens += row
    return CaptionWords(tuple(tokens), (*written, END), (*steps, (len(tokens),)), tuple(unknown))


def words_of_tokens(vocabulary: Subwords, tokens: Sequence[int]) -> CaptionWords:
    """Join the tokens that a model wrote to words; no model writes an unknown one."""
    words: list[str] = []
    steps: list[list[int]] = []
    for step, piece in enumerate(vocabulary.pieces(tokens)):
        is_new = piece.startswith(SPACE) or not words
        text = piece.removeprefix(SPACE)
        if is_new and (not words or words[-1]):
            words.append(text)
            steps.append([step])
        else:
            words[-1] += text
            steps[-1].append(step)
    return CaptionWords(tuple(tokens), (*words, END), (*map(tuple, steps), (len(tokens),)), ())
