"""Errors a user can mend: each says what was given, what was expected and what to do.

All are ``ValueError``; the command line prints their text without a traceback and exits with code 2.
Violations of our own invariants are plain ``assert`` and show a traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class VitrailError(ValueError):
    """Tell a user what is wrong and how to mend it.

    Args:
        given: what was found, a sentence without its full stop: ``"the folder photos/ holds no image"``.
        expected: what would have been right, completing "Expected ...".
        remedy: what to do, an imperative sentence without its full stop.
    """

    def __init__(self, given: str, *, expected: str, remedy: str) -> None:
        self.given, self.expected, self.remedy = given, expected, remedy
        super().__init__(f"{_end(given)} Expected {_end(expected)} {_end(remedy)}")


class ConfigError(VitrailError):
    """A setting, a name or a command-line value is wrong."""


class DataError(VitrailError):
    """A data set, or a file of it, cannot be used."""


class CheckpointError(VitrailError):
    """A checkpoint or a run directory is missing, damaged or of another model."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Say which known names resemble the given one, as a remedy sentence."""
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    if close:
        return "Did you mean " + " or ".join(repr(match) for match in close) + "?"
    return "Choose one of: " + ", ".join(known)


def _end(sentence: str) -> str:
    """Add the full stop, unless the sentence has an end of its own, as a quoted error or a question has."""
    return sentence if sentence.endswith((".", "?")) else f"{sentence}."
