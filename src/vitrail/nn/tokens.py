"""The tensors that layers pass on: images, feature maps and tokens, and the views between the last two.

Feature maps are in channels-last memory, so that flattening them to tokens is only a view.
"""

from __future__ import annotations

from collections.abc import Iterable

from jaxtyping import Bool, Float
from torch import Tensor, nn

Grid = tuple[int, int]
"""Rows and columns."""
Images = Float[Tensor, "batch channels height width"]
FeatureMap = Float[Tensor, "batch dim rows columns"]
InputMap = Float[Tensor, "batch dim_in rows_in columns_in"]
"""A feature map that a layer makes coarser or wider."""
Tokens = Float[Tensor, "batch tokens dim"]
"""Prefix tokens, such as a class token, then the grid row by row."""
Logits = Float[Tensor, "batch classes"]
Mask = Bool[Tensor, "#batch #heads #queries #keys"]
"""True where a query may attend to a key."""
Bias = Float[Tensor, "#batch #heads #queries #keys"]


def map_to_tokens(x: FeatureMap) -> Tokens:
    """View a feature map as tokens, row by row; a copy only if its memory is not channels-last."""
    return x.flatten(2).transpose(1, 2)


def tokens_to_map(x: Tokens, grid: Grid) -> FeatureMap:
    """View tokens as a feature map in channels-last memory."""
    return x.transpose(1, 2).reshape(x.shape[0], -1, *grid)


def run_stages(stages: Iterable[nn.Module], x: InputMap) -> list[FeatureMap]:
    """Return the feature map of each stage of a pyramid, finest first."""
    maps = []
    for stage in stages:
        x = stage(x)
        maps.append(x)
    return maps
