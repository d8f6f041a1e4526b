"""The tokens that a mixer is built for, and how its weights adapt to others."""

from __future__ import annotations

from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from vitrail.core.errors import DataError
from vitrail.nn.positions import resize_grid_table
from vitrail.nn.tokens import Grid


class MixerShape(NamedTuple):
    """The tokens that a mixer is built for, and how convolutions of them vary.

    Only mixers whose weights depend on the number of tokens use it, and those adapt to another number: they
    resample the grid of an image, and use the leading part for a shorter sequence.
    """

    dim: int
    num_heads: int
    """Heads, or groups of channels that share weights; divides ``dim``."""
    num_tokens: int
    """Number of tokens with prefix tokens; for text the maximum."""
    grid: Grid | None = None
    """Rows and columns of the tokens after the prefix, for images."""
    kernel_size: int | None = None
    """Odd width of a convolution; None for its own default."""
    kernel_dropout: float = 0.0
    """Probability that a kernel weight of a convolution is dropped."""
    causal: bool = False
    """Whether a convolution sees earlier tokens alone, as in a decoder."""

    @property
    def num_prefix(self) -> int:
        """Tokens before the grid; 0 without a grid."""
        return 0 if self.grid is None else self.num_tokens - self.grid[0] * self.grid[1]


def fit_to_tokens(
    table: Float[Tensor, "tokens ..."], shape: MixerShape, num_tokens: int, grid: Grid | None
) -> Float[Tensor, "{num_tokens} ..."]:
    """Return the rows of a learned table for the given tokens.

    Another grid is resampled and prefix tokens keep their rows. A sequence takes the leading rows.

    Args:
        table: one row for each token of the shape, and at least one further axis.
        num_tokens: prefix tokens included.

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
    """Check that a sequence is not longer than a mixer's weights.

    Raises:
        DataError: it is longer.
    """
    if num_tokens > shape.num_tokens:
        raise DataError(
            f"a sequence of {num_tokens} tokens for a mixer with weights for {shape.num_tokens}",
            expected=f"at most {shape.num_tokens} tokens",
            remedy="Shorten the sequence, or build the model for longer ones",
        )


def locate(num_tokens: int, grid: Grid | None) -> tuple[int, tuple[int, int]]:
    """Return the number of prefix tokens, and the grid; a sequence is a grid of one row."""
    if grid is None:
        return 0, (1, num_tokens)
    return num_tokens - grid[0] * grid[1], grid
