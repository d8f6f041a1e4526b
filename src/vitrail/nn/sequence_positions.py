"""Positions that are added to the tokens of a sequence, for all of them or for the newest alone."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.core.errors import DataError
from vitrail.nn.positions import sinusoidal_positions

STORED_POSITIONS = 512  # longer sequences are rare, and their table is made when they come


class SinusoidalPositions(nn.Module):
    """Add fixed sines and cosines; any length will do.

    Args:
        dim: width of the tokens, even.
        make_table: of a number of tokens and a width, such as ``sinusoidal_positions``.

    Paper: Vaswani et al. 2017, section 3.5.
    """

    stored: Tensor

    def __init__(
        self, dim: int, *, make_table: Callable[..., Float[Tensor, "tokens dim"]] = sinusoidal_positions
    ) -> None:
        super().__init__()
        assert dim % 2 == 0, f"{dim} channels cannot be split into sines and cosines"
        self.dim, self.make_table = dim, make_table
        self.register_buffer("stored", make_table(STORED_POSITIONS, dim), persistent=False)

    def forward(
        self, x: Float[Tensor, "batch tokens dim"], *, first: int = 0
    ) -> Float[Tensor, "batch tokens dim"]:
        """Return the tokens with their positions, the first of which is ``first``."""
        end = first + x.shape[1]
        # A traced program is for any length, and has no table to look it up in.
        if torch.compiler.is_compiling() or end > STORED_POSITIONS:
            table = self.make_table(end, self.dim, device=x.device)
        else:
            table = self.stored
        return x + table[first:end].to(x.dtype)

    def extra_repr(self) -> str:
        return f"{self.dim}, make_table={self.make_table.__name__}"


class LearnedPositions(nn.Module):
    """Add one learned vector to each place of a sequence, up to a greatest length.

    Args:
        num_tokens: the greatest length.
        dim: width of the tokens.

    Paper: Gehring et al. 2017, section 3.1.
    """

    def __init__(self, num_tokens: int, dim: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.empty(num_tokens, dim))
        nn.init.normal_(self.table, std=dim**-0.5)  # Ott et al. 2019 (fairseq), published code

    def forward(
        self, x: Float[Tensor, "batch tokens dim"], *, first: int = 0
    ) -> Float[Tensor, "batch tokens dim"]:
        """Return the tokens with their positions, the first of which is ``first``.

        Raises:
            DataError: the table does not reach so far.
        """
        end = first + x.shape[1]
        if end > len(self.table):
            raise DataError(
                f"a sequence of {end} tokens for a model with positions for {len(self.table)}",
                expected=f"at most {len(self.table)} tokens",
                remedy="Shorten the sentence, build the model with a larger max_length, or choose positions "
                "without a table, such as sinusoidal",
            )
        return x + self.table[first:end].to(x.dtype)
