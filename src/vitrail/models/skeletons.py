"""The two kinds of image models: isotropic, of one width throughout, or a pyramid of stages.

A family builds the parts and passes them in. Feature maps are batch, channels, rows, columns, in
channels-last memory, so that flattening to tokens is only a view. The batch is read as ``shape[0]``, which
torch.export can leave open, and not as ``len``, which it cannot.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.models.contract import ImageModelConfig, check_images
from vitrail.nn.blocks import Dropout


class TokenModel(nn.Module):
    """What models with one sequence of tokens share: logits, tokens and feature map from the final tokens."""

    num_prefix: int
    pool: nn.Module | None
    head: nn.Module

    def tokens_and_grid(self, images: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """Return the tokens after the last norm, prefix tokens first, and the grid of the others."""
        raise NotImplementedError

    def forward(self, images: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch classes"]:
        tokens, grid = self.tokens_and_grid(images)
        return self.head(tokens if self.pool is None else self.pool(tokens, grid=grid))

    def tokens(
        self, images: Float[Tensor, "batch channels height width"]
    ) -> Float[Tensor, "batch tokens dim"]:
        """Return the tokens after the last norm: prefix tokens, then the grid row by row."""
        return self.tokens_and_grid(images)[0]

    def features(
        self, images: Float[Tensor, "batch channels height width"]
    ) -> list[Float[Tensor, "batch dim rows columns"]]:
        """Return the patch tokens after the last norm as one feature map."""
        tokens, grid = self.tokens_and_grid(images)
        return [tokens_to_map(tokens[:, self.num_prefix :], grid)]


class Isotropic(TokenModel):
    """Stem, positions, blocks of one width, norm and head.

    Args:
        stem: from images to a feature map of tokens.
        blocks: each is called with the tokens and ``grid``, the rows and columns of the feature map.
        norm: after the last block.
        head: from the output of ``pool`` to logits.
        pool: from the normalised tokens and ``grid`` to the input of the head; None passes on the tokens,
            prefix tokens first.
        positions: from a grid to what is added to the prefix tokens and the patches; None adds nothing.
        num_prefix: learned tokens before the patches, such as a class token.
        dropout: before the first block.
        input_norm: norm of the tokens with their positions, before the first block; None for none.
    """

    def __init__(
        self,
        config: ImageModelConfig,
        *,
        stem: nn.Module,
        blocks: Sequence[nn.Module],
        norm: nn.Module,
        head: nn.Module,
        pool: nn.Module | None = None,
        positions: nn.Module | None = None,
        num_prefix: int = 0,
        dropout: float = 0.0,
        input_norm: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.config, self.num_prefix = config, num_prefix
        self.stem = stem
        self.prefix: nn.Parameter | None = None
        if num_prefix:
            self.prefix = nn.Parameter(torch.zeros(num_prefix, config.width))  # type: ignore[attr-defined]
            nn.init.trunc_normal_(self.prefix, std=0.02)  # Touvron et al. 2021, published code
        self.positions = positions
        self.dropout = Dropout(dropout)
        self.input_norm = input_norm
        self.blocks = nn.ModuleList(blocks)
        self.norm = norm
        self.pool = pool
        self.head = head

    def tokens_and_grid(self, images: Tensor) -> tuple[Tensor, tuple[int, int]]:
        x, grid = embed_images(self, images)
        for block in self.blocks:
            x = block(x, grid=grid)
        return self.norm(x), grid


class Pyramid(nn.Module):
    """Stem, stages of falling resolution, a final transformation, and a head on the mean over positions.

    Args:
        stem: from images to a feature map.
        stages: each from the previous feature map to the next.
        final: of the last feature map before the mean, such as a norm.
    """

    def __init__(
        self,
        config: ImageModelConfig,
        *,
        stem: nn.Module,
        stages: Sequence[nn.Module],
        final: nn.Module,
        head: nn.Module,
    ) -> None:
        super().__init__()
        self.config = config
        self.stem = stem
        self.stages = nn.ModuleList(stages)
        self.final = final
        self.head = head

    def forward(self, images: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch classes"]:
        return self.head(self.tokens(images).mean(dim=1))

    def tokens(
        self, images: Float[Tensor, "batch channels height width"]
    ) -> Float[Tensor, "batch tokens dim"]:
        """Return the positions whose mean the head reads, row by row."""
        return map_to_tokens(self.final(self.features(images)[-1]))

    def features(
        self, images: Float[Tensor, "batch channels height width"]
    ) -> list[Float[Tensor, "batch dim rows columns"]]:
        check_images(images, self.config)
        return _run_stages(self.stem, self.stages, images)


class Backbone(nn.Module):
    """Stem and stages of a pyramid without its head, for models that read its feature maps.

    Args:
        num_frozen: parts, from the stem on, whose weights are not trained.
    """

    def __init__(self, *, stem: nn.Module, stages: Sequence[nn.Module], num_frozen: int = 0) -> None:
        super().__init__()
        self.stem = stem
        self.stages = nn.ModuleList(stages)
        for part in [stem, *stages][:num_frozen]:
            part.requires_grad_(False)

    def forward(
        self, images: Float[Tensor, "batch channels height width"]
    ) -> list[Float[Tensor, "batch dim rows columns"]]:
        return _run_stages(self.stem, self.stages, images)


class TokenStage(nn.Module):
    """One stage of a pyramid whose blocks work on tokens.

    Args:
        downsample: from the previous feature map to the stage's; identity where they are the same.
        blocks: each is called with the tokens and ``grid``, the rows and columns of the feature map.
        norm: of the tokens after the last block; identity for none.
    """

    def __init__(self, *, downsample: nn.Module, blocks: Sequence[nn.Module], norm: nn.Module) -> None:
        super().__init__()
        self.downsample = downsample
        self.blocks = nn.ModuleList(blocks)
        self.norm = norm

    def forward(
        self, x: Float[Tensor, "batch dim_in rows_in columns_in"]
    ) -> Float[Tensor, "batch dim rows columns"]:
        x = self.downsample(x)
        grid = (x.shape[-2], x.shape[-1])
        x = map_to_tokens(x)
        for block in self.blocks:
            x = block(x, grid=grid)
        return tokens_to_map(self.norm(x), grid)


def embed_images(
    model: Any, images: Float[Tensor, "batch channels height width"]
) -> tuple[Float[Tensor, "batch tokens dim"], tuple[int, int]]:
    """Return the first block's input, prefix tokens first, and the grid of the other tokens.

    Args:
        model: an isotropic model, or another with the same parts before its blocks.
    """
    check_images(images, model.config)
    x = model.stem(images)  # b d rows columns
    grid = (x.shape[-2], x.shape[-1])
    x = map_to_tokens(x)
    # Under autocast the stem decides the type of the residual stream: float32 positions would widen it.
    positions = None if model.positions is None else model.positions(grid).to(x.dtype)
    if model.prefix is not None:
        prefix = model.prefix.to(x.dtype)
        if positions is not None:
            prefix, x = prefix + positions[: model.num_prefix], x + positions[model.num_prefix :]
        x = torch.cat((prefix.expand(x.shape[0], -1, -1), x), dim=1)  # b prefix+cells d
    elif positions is not None:
        x = x + positions
    x = model.dropout(x)
    if model.input_norm is not None:
        x = model.input_norm(x)
    return x, grid


def map_to_tokens(x: Float[Tensor, "batch dim rows columns"]) -> Float[Tensor, "batch cells dim"]:
    """View a feature map as tokens, row by row; a copy only if its memory is not channels-last."""
    return x.flatten(2).transpose(1, 2)


def tokens_to_map(
    x: Float[Tensor, "batch cells dim"], grid: tuple[int, int]
) -> Float[Tensor, "batch dim {grid[0]} {grid[1]}"]:
    """View tokens as a feature map in channels-last memory."""
    return x.transpose(1, 2).reshape(x.shape[0], -1, *grid)


def _run_stages(stem: nn.Module, stages: nn.ModuleList, images: Tensor) -> list[Tensor]:
    x = stem(images)
    maps = []
    for stage in stages:
        x = stage(x)
        maps.append(x)
    return maps
