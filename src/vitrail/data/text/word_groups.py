"""The words of a text and the tokens of each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from vitrail.data.text.subword_sampling import SPACE
from vitrail.data.text.subwords import Subwords

END = "(end)"


class GroupedWords(NamedTuple):
    """The words of a text and their tokens; step i generates token i, and the last step the end."""

    tokens: tuple[int, ...]
    """Of the whole text, without begin and end."""
    words: tuple[str, ...]
    """Each word, followed by the end."""
    steps: tuple[tuple[int, ...], ...]
    """The steps that generate each of ``words``, at least one."""
    unknown: tuple[int, ...]
    """Indices in ``words`` of fully or partly unknown words."""

    @property
    def unknown_words(self) -> list[str]:
        """The unknown words, each once."""
        return list(dict.fromkeys(self.words[index] for index in self.unknown))

    @property
    def labels(self) -> tuple[str, ...]:
        """The words for display, unknown ones marked."""
        return tuple(
            f"{word} (unknown)" if index in self.unknown else word for index, word in enumerate(self.words)
        )


def words_of_text(vocabulary: Subwords, text: str, *, marks_apart: bool = False) -> GroupedWords:
    """Split a human-written text into words, known or not.

    The text is preprocessed, with spaces between words.

    Args:
        marks_apart: whether punctuation before and after a word is a word of its own, if it has tokens of its
            own.

    >>> from vitrail.data.text.words import WordVocabulary
    >>> found = words_of_text(WordVocabulary(["a", "dog"]), "a cat")
    >>> found.words, found.steps, found.unknown
    (('a', 'cat', '(end)'), ((0,), (1,), (2,)), (1,))
    """
    words = text.split()
    tokens, written, unknown = list[int](), list[str](), list[int]()
    steps: list[tuple[int, ...]] = []
    for word, row in zip(words, vocabulary.encode(words), strict=True):
        if not row:  # only characters that the vocabulary treats as spaces
            continue
        is_unknown = vocabulary.unknown_id in row
        if is_unknown:
            unknown.append(len(written))
        apart = marks_apart and not is_unknown  # the letters of unknown tokens are not known here
        parts = list(_marks_apart(vocabulary.pieces(row))) if apart else [(word, range(len(row)))]
        for part, places in parts:
            written.append(part)
            steps.append(tuple(len(tokens) + place for place in places))
        tokens += row
    return GroupedWords(tuple(tokens), (*written, END), (*steps, (len(tokens),)), tuple(unknown))


def words_of_tokens(
    vocabulary: Subwords, tokens: Sequence[int], *, marks_apart: bool = False
) -> GroupedWords:
    """Join generated tokens to words; ``marks_apart`` as in ``words_of_text``."""
    pieces = vocabulary.pieces(tokens)
    rows: list[list[int]] = []
    for step, piece in enumerate(pieces):
        is_new = piece.startswith(SPACE) or not rows
        if is_new and (not rows or any(pieces[place] != SPACE for place in rows[-1])):
            rows.append([step])
        else:
            rows[-1].append(step)
    words: list[str] = []
    steps: list[tuple[int, ...]] = []
    for row in rows:
        texts = [pieces[step] for step in row]
        parts = _marks_apart(texts) if marks_apart else [(_join(texts), range(len(row)))]
        for part, places in parts:
            words.append(part)
            steps.append(tuple(row[place] for place in places))
    return GroupedWords(tuple(tokens), (*words, END), (*steps, (len(tokens),)), ())


def _marks_apart(pieces: Sequence[str]) -> Iterator[tuple[str, range]]:
    """Yield what is before a word's letters, the word and what is after it, each with its pieces."""
    lettered = [place for place, piece in enumerate(pieces) if any(map(str.isalnum, piece))]
    first, stop = (lettered[0], lettered[-1] + 1) if lettered else (0, len(pieces))
    if not _join(pieces[:first]):  # a space alone
        first = 0
    for places in (range(first), range(first, stop), range(stop, len(pieces))):
        if places:
            yield _join(pieces[places.start : places.stop]), places


def _join(pieces: Sequence[str]) -> str:
    return "".join(piece.removeprefix(SPACE) for piece in pieces)
