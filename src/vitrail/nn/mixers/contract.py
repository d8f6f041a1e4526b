"""What a token mixer is told of the tokens it is made for."""

from __future__ import annotations

from typing import NamedTuple


class MixerShape(NamedTuple):
    """The tokens that a mixer is made for.

    Only mixers whose weights depend on the number of tokens look at it, and those say what they do with
    another number: they resample the cells of an image, and complete a sequence.
    """

    dim: int
    """Width of a token."""
    num_heads: int
    """Heads, or groups of channels that share weights; divides ``dim``."""
    num_tokens: int
    """Number of tokens with prefix tokens; of a text the greatest number."""
    grid: tuple[int, int] | None = None
    """Rows and columns of the tokens after the prefix, where they are an image's."""
