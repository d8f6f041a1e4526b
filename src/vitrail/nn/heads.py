"""Classification heads: pooling of the final tokens, and layers from there to logits.

A pool is called with the tokens, prefix tokens first, and ``grid``, the rows and columns of the others.
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn

from vitrail.nn.positions import resize_map
from vitrail.nn.tokens import Grid, Tokens


class PrefixPool(nn.Module):
    """Return the first prefix tokens.

    Args:
        num_read: how many; one is returned without an axis of tokens.
    """

    def __init__(self, num_read: int = 1) -> None:
        super().__init__()
        self.num_read = num_read

    def forward(
        self, x: Tokens, *, grid: Grid
    ) -> Float[Tensor, "batch dim"] | Float[Tensor, "batch {self.num_read} dim"]:
        return x[:, 0] if self.num_read == 1 else x[:, : self.num_read]

    def extra_repr(self) -> str:
        return f"num_read={self.num_read}"


class MeanPool(nn.Module):
    """Average over the patches."""

    def __init__(self, *, num_prefix: int = 0) -> None:
        super().__init__()
        self.num_prefix = num_prefix

    def forward(self, x: Tokens, *, grid: Grid) -> Float[Tensor, "batch dim"]:
        return x[:, self.num_prefix :].mean(dim=1)

    def extra_repr(self) -> str:
        return f"num_prefix={self.num_prefix}"


class FlattenPool(nn.Module):
    """Concatenate the patches, row by row, for a head with a fixed number of them.

    Patches of another grid are resampled to that of the head: bilinearly, averaging where there are more.

    Args:
        grid: rows and columns that the head reads.
    """

    def __init__(self, grid: Grid, *, num_prefix: int = 0) -> None:
        super().__init__()
        self.grid, self.num_prefix = grid, num_prefix

    def forward(self, x: Tokens, *, grid: Grid) -> Float[Tensor, "batch values"]:
        """Return ``rows * columns * dim`` values, those of a patch together."""
        patches = x[:, self.num_prefix :]
        if grid == self.grid:
            return patches.flatten(1)
        maps = patches.transpose(1, 2).reshape(x.shape[0], -1, *grid).float()  # b d rows columns
        maps = resize_map(maps, self.grid, interpolation="bilinear", antialias=True)
        return maps.movedim(1, -1).flatten(1).to(x.dtype)

    def extra_repr(self) -> str:
        return f"grid={self.grid}, num_prefix={self.num_prefix}"


class MLPHead(nn.Module):
    """Linear, tanh, linear.

    Paper: Dosovitskiy et al. 2021, section 3.1, the head of pre-training; tanh is in the published code.
    """

    def __init__(self, dim: int, hidden_dim: int, num_classes: int) -> None:
        super().__init__()
        self.expand = nn.Linear(dim, hidden_dim)
        self.contract = nn.Linear(hidden_dim, num_classes)

    def forward(self, x: Float[Tensor, "batch dim"]) -> Float[Tensor, "batch classes"]:
        return self.contract(self.expand(x).tanh())


class DistilledHead(nn.Module):
    """Average the logits of two linear layers, one for the class token and one for the distillation token.

    Paper: Touvron et al. 2021, section 4, "Classification with our approach: joint classifiers".
    Departs from the paper: logits are averaged where it adds softmaxes, as in its published code; and they
    are averaged in training too, where a distillation loss would call the layers itself.
    """

    def __init__(self, dim: int, num_classes: int) -> None:
        super().__init__()
        self.label = nn.Linear(dim, num_classes)
        self.teacher = nn.Linear(dim, num_classes)

    def forward(self, x: Float[Tensor, "batch 2 dim"]) -> Float[Tensor, "batch classes"]:
        return (self.label(x[:, 0]) + self.teacher(x[:, 1])) / 2
