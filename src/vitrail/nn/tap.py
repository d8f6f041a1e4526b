"""The tap: what an attention layer shows of itself while it runs, to be recorded.

A layer with a tap calls it at every forward pass; without one it forms no attention weights.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol, runtime_checkable

from jaxtyping import Int
from torch import Tensor

from vitrail.nn.tokens import Grid


class TokenGrids(NamedTuple):
    """Positions of one attention's queries and keys in the image."""

    queries: Grid | None
    """Rows and columns of the queries' grid; None if they are not an image's."""
    keys: Grid
    """Rows and columns of the keys' grid."""
    windows: tuple[Int[Tensor, "windows window_queries"], Int[Tensor, "windows window_keys"]] | None = None
    """For windows, which stand in the batch, window by window within an image: the grid index of each query
    and of each key, row by row, -1 for padding; None without windows."""


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

    def take_weights(self, weights: Tensor, *, kind: str, grids: TokenGrids | None) -> None:
        """Receive the weights (batch heads queries keys) of a layer that forms them anyway."""
        ...

    def take_result(self, value: Tensor, result: Tensor) -> None:
        """Receive values and result of the averaging (batch heads tokens dim), after the weights.

        Both are part of the layer's own computation, so gradients reach them.
        """
        ...
