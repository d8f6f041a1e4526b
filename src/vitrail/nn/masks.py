"""Attention masks: True = may attend, everywhere.

All have the four axes of attention scores (batch, heads, queries, keys), with length one where they do
not vary, and are joined by ``&``.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vitrail.core.errors import ConfigError
from vitrail.nn.tokens import Grid, Mask, Tokens


def causal_mask(num_tokens: int, *, device: torch.device | None = None) -> Bool[Tensor, "1 1 queries keys"]:
    """Let each token see itself and those before it.

    Example:
        >>> causal_mask(3)[0, 0].int().tolist()
        [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
    """
    return torch.ones(1, 1, num_tokens, num_tokens, dtype=torch.bool, device=device).tril()


def padding_mask(lengths: Int[Tensor, " batch"], num_tokens: int) -> Bool[Tensor, "batch 1 1 keys"]:
    """Let every query see the first ``lengths[i]`` tokens of sequence ``i``, not the padding after them.

    Example:
        >>> padding_mask(torch.tensor([1, 3]), 3)[:, 0, 0].int().tolist()
        [[1, 0, 0], [1, 1, 1]]
    """
    positions = torch.arange(num_tokens, device=lengths.device)
    return (positions < lengths[:, None])[:, None, None, :]  # batch 1 1 keys


def neighbourhood_mask(
    grid: Grid, radius: int, *, num_prefix: int = 0, device: torch.device | None = None
) -> Bool[Tensor, "1 1 tokens tokens"]:
    """Let each patch see those at most ``radius`` rows and columns away; 0 leaves only itself.

    Args:
        num_prefix: tokens before the grid, which see and are seen by all.
    """
    rows, columns = (torch.arange(length, device=device) for length in grid)
    near_rows = (rows[:, None] - rows).abs() <= radius
    near_columns = (columns[:, None] - columns).abs() <= radius
    near = near_rows[:, None, :, None] & near_columns[None, :, None, :]  # rows columns rows columns
    near = near.flatten(2).flatten(0, 1)  # patches patches
    mask = torch.ones(1, 1, num_prefix + len(near), num_prefix + len(near), dtype=torch.bool, device=device)
    mask[..., num_prefix:, num_prefix:] = near
    return mask


def read_key_mask(
    may_attend: Bool[Tensor, "#batch #heads #queries keys"], *, layer: str
) -> Bool[Tensor, "#batch keys"]:
    """Return which tokens are not padding, from a mask that is the same for all queries and heads.

    Args:
        layer: name of the layer, for the error.

    Raises:
        ConfigError: the mask differs by query or head, as a causal one does.

    Example:
        >>> read_key_mask(padding_mask(torch.tensor([1, 3]), 3), layer="pooling").int().tolist()
        [[1, 0, 0], [1, 1, 1]]
    """
    if may_attend.shape[1] != 1 or may_attend.shape[2] != 1:
        raise ConfigError(
            f"a mask of shape {tuple(may_attend.shape)}, which differs by query or head, for {layer}",
            expected="a padding mask of shape (batch, 1, 1, keys), the same for every query",
            remedy="Choose attention or a synthesizer where some queries may see less than others",
        )
    return may_attend[:, 0, 0]


def hide_padding(
    x: Tokens, may_attend: Bool[Tensor, "#batch #heads #queries tokens"] | None, *, layer: str
) -> Tokens:
    """Set the tokens that a padding mask hides to zero, so that sums over tokens ignore them.

    Raises:
        ConfigError: as ``read_key_mask``.
    """
    if may_attend is None:
        return x
    return x.masked_fill(~read_key_mask(may_attend, layer=layer)[..., None], 0.0)


def masked_softmax(
    scores: Float[Tensor, "#batch heads queries keys"], may_attend: Mask | None
) -> Float[Tensor, "_ heads queries keys"]:
    """Return the softmax over the keys a query may attend to, in the scores' type; zeros if there is none."""
    if may_attend is None:
        # The kernel reads bfloat16, sums in float32 and rounds once; a float32 copy would be wasted.
        return scores.softmax(dim=-1)
    weights = scores.masked_fill(~may_attend, -math.inf).softmax(dim=-1)
    return weights.masked_fill(~may_attend.any(dim=-1, keepdim=True), 0.0)
