"""The tensors that layers pass on: images, feature maps and tokens."""

from __future__ import annotations

from jaxtyping import Bool, Float
from torch import Tensor

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
