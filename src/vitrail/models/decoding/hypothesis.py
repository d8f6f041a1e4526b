"""A way to write a sentence, as a search for it returns it."""

from __future__ import annotations

from typing import NamedTuple


class Hypothesis(NamedTuple):
    """One way to write a sentence."""

    tokens: tuple[int, ...]
    """What was written, without begin and end."""
    log_probability: float
    """Sum over its tokens and, if it has one, its end; natural logarithm, at most 0."""
    score: float
    """``log_probability / length ** length_penalty``, where the length counts the end."""
    is_finished: bool
    """Whether it ended by itself; otherwise its longest length cut it off."""
