"""Sinusoidal positions of sequences and grids (Vaswani et al. 2017, section 3.5)."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.nn.tokens import Grid, Tokens

WAVELENGTH_BASE = 10_000.0  # Vaswani et al. 2017, section 3.5
STORED_POSITIONS = 512  # for decoding step by step; longer sequences are rare


def sinusoidal_positions(
    num_tokens: int, dim: int, *, device: torch.device | None = None
) -> Float[Tensor, "tokens dim"]:
    """Return sines in the even and cosines in the odd channels of each position.

    ``table[p, 2i] = sin(p / 10000^(2i/dim))``, ``table[p, 2i+1] = cos`` of the same angle; float32.

    Paper: Vaswani et al. 2017, section 3.5.

    Example:
        >>> sinusoidal_positions(2, 4)[0].tolist()
        [0.0, 1.0, 0.0, 1.0]
    """
    angles = position_angles(torch.arange(num_tokens, device=device), dim)
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)  # tokens dim


def sinusoidal_positions_in_halves(
    num_tokens: int, dim: int, *, device: torch.device | None = None
) -> Float[Tensor, "tokens dim"]:
    """Return all sines in the first half of the channels and all cosines in the second; float32.

    Otherwise as ``sinusoidal_positions``; the order of Marian and its models (Junczys-Dowmunt et al. 2018,
    published code).

    Example:
        >>> sinusoidal_positions_in_halves(2, 4)[0].tolist()
        [0.0, 0.0, 1.0, 1.0]
    """
    angles = position_angles(torch.arange(num_tokens, device=device), dim)
    return torch.cat((angles.sin(), angles.cos()), dim=-1)  # tokens dim


def sinusoidal_grid_positions(
    grid: Grid, dim: int, *, device: torch.device | None = None
) -> Float[Tensor, "patches dim"]:
    """Return the sines and cosines of each patch's column, then those of its row, row by row; float32.

    Args:
        dim: a multiple of four.

    Paper: He et al. 2022 (MAE), appendix A; its published code encodes the column first.
    """
    rows, columns = grid
    by_column = position_angles(torch.arange(columns, device=device), dim // 2)
    by_row = position_angles(torch.arange(rows, device=device), dim // 2)
    column_part = torch.cat((by_column.sin(), by_column.cos()), dim=-1).expand(rows, -1, -1)
    row_part = torch.cat((by_row.sin(), by_row.cos()), dim=-1)[:, None].expand(-1, columns, -1)
    return torch.cat((column_part, row_part), dim=-1).flatten(0, 1)  # patches dim


class SinusoidalPositions(nn.Module):
    """Add fixed sinusoidal positions, for any length.

    Args:
        make_table: such as ``sinusoidal_positions``.

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

    def forward(self, x: Tokens, *, first: int = 0) -> Tokens:
        """Return the tokens with their positions, counted from ``first``."""
        if not first:  # a whole sequence, of any length also in a traced program
            return x + self.make_table(x.shape[1], self.dim, device=x.device).to(x.dtype)
        end = first + x.shape[1]
        is_stored = end <= STORED_POSITIONS
        table = self.stored if is_stored else self.make_table(end, self.dim, device=x.device)
        return x + table[first:end].to(x.dtype)

    def extra_repr(self) -> str:
        return f"{self.dim}, make_table={self.make_table.__name__}"


class SinusoidalGridPositions(nn.Module):
    """Fixed sinusoidal positions for any grid; those of prefix tokens are zero (He et al. 2022).

    Args:
        dim: a multiple of four.
    """

    anchor: Tensor

    def __init__(self, dim: int, *, num_prefix: int = 0) -> None:
        super().__init__()
        assert dim % 4 == 0, f"{dim} channels cannot be split into sine and cosine of row and column"
        self.dim, self.num_prefix = dim, num_prefix
        self.register_buffer("anchor", torch.zeros(0), persistent=False)  # knows the module's device

    def forward(self, grid: Grid) -> Float[Tensor, "tokens dim"]:
        table = sinusoidal_grid_positions(grid, self.dim, device=self.anchor.device)
        return F.pad(table, (0, 0, self.num_prefix, 0))  # tokens dim


def position_angles(positions: Tensor, dim: int, *, base: float = WAVELENGTH_BASE) -> Tensor:
    """Return each position times each of ``dim / 2`` falling frequencies, in float32."""
    channels = torch.arange(0, dim, 2, device=positions.device, dtype=torch.float32)
    return positions.float()[:, None] * base ** (-channels / dim)
