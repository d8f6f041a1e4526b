"""What a token mixer is told of the tokens it is made for, and what it does with others."""

from __future__ import annotations

from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from vitrail.core.errors import DataError
from vitrail.nn.positions import resize_grid_table


class MixerShape(NamedTuple):
    """The tokens that a mixer is made for.

    Only mixers whose weights depend on the number of tokens look at it, and those say what they do with
    another number: they resample the cells of an image, and use the leading part for a shorter sequence.
    """

    dim: int
    """Width of a token."""
    num_heads: int
    """Heads, or groups of channels that share weights; divides ``dim``."""
    num_tokens: int
    """Number of tokens with prefix tokens; of a text the greatest number."""
    grid: tuple[int, int] | None = None
    """Rows and columns of the tokens after the prefix, where they are an image's."""

    @property
    def num_prefix(self) -> int:
        """Tokens before the grid; 0 without a grid."""
        return 0 if self.grid is None else self.num_tokens - self.grid[0] * self.grid[1]


def fit_to_tokens(
    table: Float[Tensor, "tokens ..."],
    shape: MixerShape,
    num_tokens: int,
    grid: tuple[int, int] | None,
) -> Float[Tensor, "{num_tokens} ..."]:
    """Return the rows of a learned table for the tokens at hand.

    Cells of another grid are resampled and prefix tokens keep their rows. A sequence takes the leading rows.

    Args:
        table: one row for each token of the shape, and at least one further axis.
        shape: what the table was made for.
        num_tokens: tokens at hand, prefix tokens included.
        grid: their rows and columns where they are an image's.

    Raises:
        DataError: a sequence is longer than the table.
    """
    if grid is not None and shape.grid is not None:
        assert num_tokens - grid[0] * grid[1] == shape.num_prefix, "another number of prefix tokens"
        if grid == shape.grid:
            return table
        resized = resize_grid_table(table.flatten(1), shape.grid, grid, num_prefix=shape.num_prefix)
        return resized.reshape(num_tokens, *table.shape[1:])
    check_length(shape, num_tokens)
    return table[:num_tokens]


def check_length(shape: MixerShape, num_tokens: int) -> None:
    """Refuse a sequence that is longer than the one a mixer has weights for.

    Raises:
        DataError: it is longer.
    """
    if num_tokens > shape.num_tokens:
        raise DataError(
            f"a sequence of {num_tokens} tokens for a mixer with weights for {shape.num_tokens}",
            expected=f"at most {shape.num_tokens} tokens",
            remedy="Shorten the sequence, or build the model for longer ones",
        )


def locate(num_tokens: int, grid: tuple[int, int] | None) -> tuple[int, tuple[int, int]]:
    """Return how many tokens stand before the grid, and the grid; a sequence is a grid of one row."""
    if grid is None:
        return 0, (1, num_tokens)
    return num_tokens - grid[0] * grid[1], grid
