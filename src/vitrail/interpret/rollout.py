"""Attention rollout, and what it shows of each patch: pure functions of recorded attention weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.core.errors import ConfigError

Reader = Literal["class", "mean"]


def fuse_heads(
    weights: Float[Tensor, "batch heads queries keys"], fusion: str = "mean"
) -> Float[Tensor, "batch queries keys"]:
    """Join the heads of one layer into one map whose rows sum to one.

    Args:
        weights: attention of one layer.
        fusion: ``mean`` as the paper does; ``max`` and ``min`` keep what any or every head attends to, and
            are normalised again because their rows do not sum to one.

    Raises:
        ConfigError: the fusion is unknown.
    """
    weights = weights.float()
    if fusion == "mean":
        return weights.mean(dim=1)
    if fusion not in ("max", "min"):
        raise ConfigError(
            f"heads cannot be joined by {fusion!r}",
            expected="mean, max or min",
            remedy="Choose mean, as the paper of attention rollout does",
        )
    fused = weights.amax(dim=1) if fusion == "max" else weights.amin(dim=1)
    return fused / fused.sum(dim=-1, keepdim=True).clamp(min=torch.finfo(fused.dtype).tiny)


def attention_rollout(
    layers: Sequence[Float[Tensor, "batch heads _ _"]], fusion: str = "mean"
) -> Float[Tensor, "batch tokens tokens"]:
    """Follow attention through all layers down to the input tokens.

    Each layer becomes A = 0.5 W + 0.5 I, the identity standing for the residual connection, and the result
    is the product A_L ... A_1: row i tells how much of output token i stems from each input token. Every
    row sums to one.

    Paper: Abnar and Zuidema 2020, Quantifying Attention Flow in Transformers, equation 1.
    Departs from the paper: the fusions ``max`` and ``min``.

    Args:
        layers: attention of every layer, from the first to the last, all queries recorded.
        fusion: how heads are joined.

    Raises:
        ConfigError: there is no layer, or the layers do not share one set of tokens.

    Example:
        >>> uniform = torch.full((1, 1, 2, 2), 0.5)
        >>> attention_rollout([uniform, uniform])[0].tolist()
        [[0.625, 0.375], [0.375, 0.625]]
    """
    _check_layers(layers)
    identity = torch.eye(layers[0].shape[-1], device=layers[0].device)
    result: Tensor | None = None
    for weights in layers:
        mixed = 0.5 * fuse_heads(weights, fusion) + 0.5 * identity
        result = mixed if result is None else mixed @ result
    assert result is not None
    return result


def read_queries(
    attention: Float[Tensor, "*batch queries keys"], reader: Reader, num_prefix: int
) -> Float[Tensor, "*batch keys"]:
    """Take the row that the classifier reads.

    Args:
        attention: rows of queries, prefix tokens first.
        reader: ``class`` for models that classify the class token, which is the first; ``mean`` for those
            that average over the patch tokens.
        num_prefix: number of tokens before the patches.

    Raises:
        ConfigError: the class token is asked of a model that has none.
    """
    if reader == "mean":
        return attention[..., num_prefix:, :].mean(dim=-2)
    if num_prefix < 1:
        raise ConfigError(
            "this model has no class token",
            expected="the reader 'mean', the average over the patches",
            remedy="Choose the reader by the model's pooling",
        )
    return attention[..., 0, :]


def to_grid(
    values: Float[Tensor, "*batch keys"], grid: tuple[int, int], num_prefix: int
) -> Float[Tensor, "*batch rows columns"]:
    """Lay the values of the patch tokens out as the image; prefix tokens are left out."""
    return values[..., num_prefix:].reshape(*values.shape[:-1], *grid)


def attention_distance(
    weights: Float[Tensor, "batch heads queries keys"],
    grid: tuple[int, int],
    num_prefix: int,
    patch_size: tuple[float, float] = (1, 1),
    *,
    query_grid: tuple[int, int] | None = None,
) -> Float[Tensor, "batch heads"]:
    """Average how far each head looks: the mean distance from query patch to attended patch.

    Paper: Dosovitskiy et al. 2021, appendix D.7 and figure 11.

    Args:
        weights: attention of one layer, all queries recorded.
        grid: rows and columns of patches.
        num_prefix: keys before the patches; what is attended to them is left out, and the rest normalised.
        patch_size: height and width of a key's patch in the unit of the result; pixels give pixels.
        query_grid: rows and columns of the queries after their prefix, where they are others than those of
            the keys; both grids lie over the same image.
    """
    query_grid = grid if query_grid is None else query_grid
    num_query_prefix = weights.shape[-2] - query_grid[0] * query_grid[1]
    patches = weights[..., num_query_prefix:, num_prefix:].float()
    patches = patches / patches.sum(dim=-1, keepdim=True).clamp(min=torch.finfo(patches.dtype).tiny)
    extent = (grid[0] * patch_size[0], grid[1] * patch_size[1])
    queries, keys = (_centres(each, extent, weights.device) for each in (query_grid, grid))
    distances = (queries[:, None] - keys[None]).square().sum(dim=-1).sqrt()  # queries keys
    return (patches * distances).sum(dim=-1).mean(dim=-1)


def head_entropy(weights: Float[Tensor, "batch heads queries keys"]) -> Float[Tensor, "batch heads"]:
    """Average the entropy of each head's rows, in nats: 0 for one key, log(keys) for all keys alike."""
    weights = weights.float()
    return torch.special.entr(weights).sum(dim=-1).mean(dim=-1)


def _centres(
    grid: tuple[int, int], extent: tuple[float, float], device: torch.device
) -> Float[Tensor, "cells 2"]:
    """Return the row and the column of each cell's centre in an image of some height and width."""
    sides = [
        (torch.arange(count, device=device) + 0.5) * (length / count)
        for count, length in zip(grid, extent, strict=True)
    ]
    return torch.stack(torch.meshgrid(*sides, indexing="ij"), dim=-1).flatten(0, 1)


def _check_layers(layers: Sequence[Tensor]) -> None:
    shapes = [tuple(weights.shape[-2:]) for weights in layers]
    if not shapes or any(shape != (shapes[0][1], shapes[0][1]) for shape in shapes):
        raise ConfigError(
            f"attention of {len(shapes)} layers with queries x keys {shapes} was given"
            if shapes
            else "no attention was recorded",
            expected="one or more layers over the same tokens, with every query recorded",
            remedy="Record without choosing queries, from a model whose layers all see the same tokens",
        )
