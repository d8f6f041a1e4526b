"""The tap: what an attention layer shows of itself while it runs, to be recorded.

A layer with a tap calls it at every forward pass; without one it forms no attention weights.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol, runtime_checkable

from jaxtyping import Float, Int
from torch import Tensor

from vitrail.nn.tokens import Bias, Grid, Mask


class TokenGrids(NamedTuple):
    """Positions of one attention's queries and keys in the image."""

    queries: Grid | None
    """Rows and columns of the queries' grid; None if they are not an image's."""
    keys: Grid
    """Rows and columns of the keys' grid."""
    windows: tuple[Int[Tensor, "windows window_queries"], Int[Tensor, "windows window_keys"]] | None = None
    """For windows, which stand in the batch, window by window within an image: the grid index of each query
    and of each key, row by row, -1 for padding; None without windows."""


def one_grid(grid: Grid | None) -> TokenGrids | None:
    """Return the grids of tokens that are both queries and keys."""
    return None if grid is None else TokenGrids(queries=grid, keys=grid)


class Scored(NamedTuple):
    """What a layer that forms its attention weights computed them from."""

    query: Float[Tensor, "batch heads queries dim"]
    key: Float[Tensor, "batch heads keys dim"]
    scores: Float[Tensor, "batch heads queries keys"]
    """Before bias and mask."""
    bias: Bias | None
    may_attend: Mask | None


@runtime_checkable
class Tap(Protocol):
    """Receives what a layer's attention weights are computed from, at every forward pass."""

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        *,
        bias: Tensor | None,
        may_attend: Tensor | None,
        scale: float | None,
        kind: str,
        grids: TokenGrids | None,
    ) -> None: ...

    def take_weights(
        self, weights: Tensor, *, kind: str, grids: TokenGrids | None, scored: Scored | None = None
    ) -> None:
        """Receive the weights (batch heads queries keys) of a layer that forms them anyway.

        Args:
            scored: what they come from, where queries are compared with keys.
        """

    def take_result(self, value: Tensor, result: Tensor) -> None:
        """Receive values and result of the averaging (batch heads tokens dim), after the weights.

        Both are part of the layer's own computation, so gradients reach them.
        """
