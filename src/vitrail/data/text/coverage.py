"""Whether a vocabulary knows the letters of a text: an unknown script indicates a foreign language."""

from __future__ import annotations

from vitrail.data.text.subwords import Subwords

UNKNOWN_SHARE = 0.5  # of the letters of a line, above which it is in another script
FEW_LETTERS = 4  # a name or an abbreviation says nothing about a language
MAX_KEPT = 10_000  # characters whose result is kept


class Coverage:
    """Find texts that a vocabulary can hardly write.

    Subwords are no measure of it: all characters between two spaces that a vocabulary does not know may be
    one unknown subword, or one each. Therefore characters are asked for one by one.
    """

    def __init__(self, subwords: Subwords) -> None:
        self._subwords = subwords
        self._is_known: dict[str, bool] = {}

    def unknown_share(self, text: str) -> float:
        """Return the share of the letters of a text that are in no subword; 0 where there are few letters."""
        letters = [character for character in text if character.isalpha()]
        if len(letters) < FEW_LETTERS:
            return 0.0
        if len(self._is_known) > MAX_KEPT:
            self._is_known = {}
        asked = sorted({letter for letter in letters if letter not in self._is_known})
        rows = self._subwords.encode(asked)
        self._is_known |= {
            letter: self._subwords.unknown_id not in row for letter, row in zip(asked, rows, strict=True)
        }
        return sum(not self._is_known[letter] for letter in letters) / len(letters)

    def warning(self, text: str) -> str | None:
        """Say that a text is in a script that the vocabulary does not know, or nothing."""
        share = self.unknown_share(text)
        if share <= UNKNOWN_SHARE:
            return None
        return (
            f"the model knows {1 - share:.0%} of the letters of this line; "
            "it may be in a language that it was not trained on"
        )
