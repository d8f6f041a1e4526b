"""Rotary positions: rotate queries and keys so that their product depends on relative positions.

Channels ``2i`` and ``2i + 1`` of a head are one pair, a complex number that is multiplied by
``exp(i position frequency)``. Both classes are position schemes of ``Attention``.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.nn.sinusoidal import position_angles
from vitrail.nn.tokens import Grid

SEQUENCE_BASE = 10_000.0  # Su et al. 2021, section 3.2.2

Heads = Float[Tensor, "batch heads tokens dim"]


def rotate_pairs(x: Heads, angles: Float[Tensor, "turned pairs"]) -> Heads:
    """Rotate each pair of neighbouring channels by its angle; returned in the type of ``x``.

    Args:
        angles: in radians, float32; tokens before those that have angles are not rotated.

    Paper: Su et al. 2021, equation 34.

    Example:
        >>> x = torch.tensor([[[[1.0, 0.0]]]])
        >>> rotate_pairs(x, torch.tensor([[torch.pi / 2]])).round().abs().flatten().tolist()
        [0.0, 1.0]
    """
    num_prefix = x.shape[-2] - angles.shape[0]
    angles = F.pad(angles, (0, 0, num_prefix, 0)) if num_prefix else angles
    cosine, sine = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    real, imaginary = x[..., 0::2], x[..., 1::2]
    turned = (real * cosine - imaginary * sine, real * sine + imaginary * cosine)
    return torch.stack(turned, dim=-1).flatten(-2)


class SequenceRotary(nn.Module):
    """Rotate queries and keys by their position in a sequence, with the frequencies ``base^(-2i/dim)``.

    Paper: Su et al. 2021 (RoFormer), equations 14 to 16.
    """

    rotate = staticmethod(rotate_pairs)
    base = SEQUENCE_BASE

    def forward(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """Return both rotated; the queries are the last tokens of the sequence of the keys."""
        positions = torch.arange(key.shape[-2], device=key.device)
        angles = position_angles(positions, key.shape[-1], base=self.base)  # tokens pairs
        return self.rotate(query, angles[key.shape[-2] - query.shape[-2] :]), self.rotate(key, angles)

    def place(self, query: Tensor, key: Tensor, *, grid: Grid | None) -> tuple[Tensor, Tensor, None]:
        return *self(query, key), None

    def place_newest(self, query_key: Tensor, *, num_before: int) -> tuple[Tensor, None]:
        positions = torch.full((query_key.shape[-2],), num_before, device=query_key.device)
        angles = position_angles(positions, query_key.shape[-1], base=self.base)
        return self.rotate(query_key.flatten(0, 1), angles).unflatten(0, query_key.shape[:2]), None


class GridRotary(nn.Module):
    """Rotate half of the channels of queries and keys by their column in a grid, the other half by their row.

    Any grid works without resizing; prefix tokens are not rotated. Each axis has the frequencies
    ``base^(-4i/dim)``.

    Paper: Heo et al. 2024 (RoPE-ViT), section 3.1, "axial frequency".
    """

    rotate = staticmethod(rotate_pairs)
    base = 100.0  # Heo et al. 2024, section 3.1: an axis of a grid is shorter than a text

    def forward(self, query: Tensor, key: Tensor, *, grid: Grid) -> tuple[Tensor, Tensor]:
        """Return both rotated; their last tokens are those of the grid, row by row."""
        dim = query.shape[-1]
        assert dim % 4 == 0, f"{dim} channels of a head cannot be split into pairs for rows and columns"
        rows, columns = (
            position_angles(torch.arange(length, device=query.device), dim // 2, base=self.base)
            for length in grid
        )
        by_column = columns.expand(len(rows), -1, -1)  # rows columns pairs
        by_row = rows[:, None].expand(-1, len(columns), -1)  # rows columns pairs
        angles = torch.cat((by_column, by_row), dim=-1).flatten(0, 1)  # patches pairs
        return self.rotate(query, angles), self.rotate(key, angles)

    def place(self, query: Tensor, key: Tensor, *, grid: Grid | None) -> tuple[Tensor, Tensor, None]:
        assert grid is not None, "positions of a grid need the grid"
        return *self(query, key, grid=grid), None
