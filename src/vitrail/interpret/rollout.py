"""Attention rollout and readouts of recorded attention weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.core.errors import ConfigError

Reader = Literal["class", "mean"]


def attention_rollout(
    layers: Sequence[Float[Tensor, "batch heads _ _"]],
) -> Float[Tensor, "batch tokens tokens"]:
    """Compute attention rollout through all layers.

    Each layer becomes A = 0.5 W + 0.5 I, with the mean W over heads and the identity for the residual
    connection; the result is the product A_L ... A_1, whose row i gives the contribution of each input token
    to output token i. Rows sum to one.

    Paper: Abnar and Zuidema 2020, Quantifying Attention Flow in Transformers, equation 1.

    Args:
        layers: attention of every layer, first to last, all queries recorded.

    Raises:
        ConfigError: there is no layer, or the layers do not share one set of tokens.

    Example:
        >>> uniform = torch.full((1, 1, 2, 2), 0.5)
        >>> attention_rollout([uniform, uniform])[0].tolist()
        [[0.625, 0.375], [0.375, 0.625]]
    """
    shapes = [tuple(weights.shape[-2:]) for weights in layers]
    if not shapes or any(shape != (shapes[0][1], shapes[0][1]) for shape in shapes):
        raise ConfigError(
            f"attention of {len(shapes)} layers with queries x keys {shapes} was given"
            if shapes
            else "no attention was recorded",
            expected="one or more layers over the same tokens, with every query recorded",
            remedy="Record without choosing queries, from a model whose layers all see the same tokens",
        )
    result = identity = torch.eye(layers[0].shape[-1], device=layers[0].device)
    for weights in layers:
        result = (0.5 * weights.float().mean(dim=1) + 0.5 * identity) @ result
    return result


def read_queries(
    attention: Float[Tensor, "*batch queries keys"], reader: Reader, num_prefix: int
) -> Float[Tensor, "*batch keys"]:
    """Return the row that the classifier reads.

    Args:
        attention: rows of queries, prefix tokens first.
        reader: ``class`` for models with a class token (the first); ``mean`` for those that average over
            patches.
        num_prefix: tokens before the patches.

    Raises:
        ConfigError: ``class`` for a model without class token.
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
