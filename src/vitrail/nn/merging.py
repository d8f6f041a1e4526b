"""Patch merging: four neighbours become one token, which halves the resolution."""

from __future__ import annotations

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.nn.linear import Linear


def merge_cells(
    x: Float[Tensor, "batch rows columns dim"],
) -> Float[Tensor, "batch half_rows half_columns four_dim"]:
    """Concatenate each square of 2x2 positions, column by column; odd maps are zero-padded.

    Example:
        >>> import torch
        >>> merge_cells(torch.tensor([[1.0, 2.0], [3.0, 4.0]])[None, :, :, None]).flatten().tolist()
        [1.0, 3.0, 2.0, 4.0]
    """
    below, right = x.shape[1] % 2, x.shape[2] % 2
    if below or right:
        x = F.pad(x, (0, 0, 0, right, 0, below))
    squares = x.unflatten(2, (-1, 2)).unflatten(1, (-1, 2))  # b rows y columns x d
    return squares.permute(0, 1, 3, 4, 2, 5).flatten(3)  # b rows columns four_dim


class PatchMerging(nn.Module):
    """Concatenate squares of 2x2, normalise, project.

    Paper: Liu et al. 2021 (Swin), section 3.1, "patch merging"; the norm is in the published code only.
    """

    def __init__(self, dim: int, out_dim: int, *, eps: float = 1e-5) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4 * dim, eps=eps)
        self.reduction = Linear(4 * dim, out_dim, bias=False)

    def forward(
        self, x: Float[Tensor, "batch dim rows columns"]
    ) -> Float[Tensor, "batch out_dim half_rows half_columns"]:
        """Return the feature map of half the rows and columns, rounded up, in channels-last memory."""
        return self.reduction(self.norm(merge_cells(x.movedim(1, -1)))).movedim(-1, 1)


class PostNormPatchMerging(nn.Module):
    """Concatenate squares of 2x2, project, normalise.

    Paper: Liu et al. 2022 (Swin V2), published code.
    """

    def __init__(self, dim: int, out_dim: int, *, eps: float = 1e-5) -> None:
        super().__init__()
        self.reduction = Linear(4 * dim, out_dim, bias=False)
        self.norm = nn.LayerNorm(out_dim, eps=eps)

    def forward(
        self, x: Float[Tensor, "batch dim rows columns"]
    ) -> Float[Tensor, "batch out_dim half_rows half_columns"]:
        """Return the feature map of half the rows and columns, rounded up, in channels-last memory."""
        return self.norm(self.reduction(merge_cells(x.movedim(1, -1)))).movedim(-1, 1)
