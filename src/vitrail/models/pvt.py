"""Pyramid Vision Transformer: four stages of attention with spatially reduced keys.

Paper: Wang et al. 2021. Input: any height and width. Maps are zero-padded to whole patches and to whole
squares of reduced keys, and each stage's positions are interpolated to its grid.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import ClassVar, Self

import torch
from jaxtyping import Float
from pydantic import Field, model_validator
from torch import Tensor, nn

from vitrail.models.contract import ImageModelConfig, ModelConfig, check_images
from vitrail.models.skeletons import map_to_tokens, tokens_to_map
from vitrail.nn.attention import Attention
from vitrail.nn.blocks import MLP, Block
from vitrail.nn.initialisation import draw_linear_layers
from vitrail.nn.positions import LearnedGridPositions
from vitrail.nn.reduction import ReducedAttention, StridedReduction


class PVTConfig(ImageModelConfig):
    """Settings of a Pyramid Vision Transformer."""

    family: ClassVar[str] = "pvt"
    paper: ClassVar[str] = "Wang et al. 2021"
    position_policy: ClassVar[str] = "learned in each stage; interpolated bilinearly to another grid"
    size_policy: ClassVar[str] = (
        "completed with zeros, below and to the right, to whole patches in each stage and to whole "
        "squares of reduced keys in each layer"
    )

    patch_size: int = Field(default=4, ge=1)
    """Patch size of the first stage in pixels; each further stage halves rows and columns."""
    widths: tuple[int, ...] = (64, 128, 320, 512)
    """Width of a token in each stage."""
    depths: tuple[int, ...] = (3, 4, 6, 3)
    """Number of blocks in each stage."""
    num_heads: tuple[int, ...] = (1, 2, 5, 8)
    """Attention heads in each stage; each divides the stage's width."""
    reductions: tuple[int, ...] = (8, 4, 2, 1)
    """Side of the square of tokens that share a key in each stage; 1 in the last."""
    mlp_ratios: tuple[float, ...] = (8.0, 8.0, 4.0, 4.0)
    """Hidden width of an MLP relative to the stage's width, in each stage."""
    drop_path: float = Field(default=0.0, ge=0, lt=1)
    """Stochastic-depth rate of the last block, linear from 0."""

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        per_stage = (self.depths, self.num_heads, self.reductions, self.mlp_ratios)
        if not self.widths or any(len(values) != len(self.widths) for values in per_stage):
            raise ValueError(
                "widths, depths, num_heads, reductions and mlp_ratios need one value for each stage"
            )
        if min(*self.depths, *self.num_heads, *self.reductions, *self.mlp_ratios) <= 0:
            raise ValueError("depths, num_heads, reductions and mlp_ratios are greater than zero")
        for width, heads in zip(self.widths, self.num_heads, strict=True):
            if width < 1 or width % heads:
                raise ValueError(f"num_heads {heads} does not divide width {width}")
        if self.reductions[-1] != 1:
            raise ValueError(f"the last of the reductions is 1, not {self.reductions[-1]}")
        return self

    @property
    def min_size(self) -> int:
        return self.patch_size

    def drop_paths(self, stage: int) -> list[float]:
        """Return the stochastic-depth rate of each block of a stage."""
        before, total = sum(self.depths[:stage]), sum(self.depths)
        return [self.drop_path * (before + i) / max(total - 1, 1) for i in range(self.depths[stage])]

    def build(self) -> PVT:
        grid, stages = self.image_size, []
        for index in range(len(self.widths)):
            ratio = 2 if index else self.patch_size
            grid = (-(-grid[0] // ratio), -(-grid[1] // ratio))
            stages.append(_build_stage(self, index, ratio=ratio, grid=grid))
        return PVT(self, stages=stages)


def _variant(depths: tuple[int, ...], drop_path: float) -> PVTConfig:
    return PVTConfig(depths=depths, drop_path=drop_path)


VARIANTS: dict[str, ModelConfig] = {  # Wang et al. 2021, table 1; drop paths of the published code
    "pvt_t": _variant((2, 2, 2, 2), 0.1),
    "pvt_s": _variant((3, 4, 6, 3), 0.1),
    "pvt_m": _variant((3, 4, 18, 3), 0.3),
    "pvt_l": _variant((3, 8, 27, 3), 0.3),
}


class PVT(nn.Module):
    """Classify images by a class token that is added in the last stage.

    Args:
        stages: each makes tokens of the previous feature map; the last one's begin with the class token.

    Paper: Wang et al. 2021, section 3.1 and figure 3.
    """

    def __init__(self, config: PVTConfig, *, stages: Sequence[PVTStage]) -> None:
        super().__init__()
        self.config, self.num_prefix = config, stages[-1].num_prefix
        self.stages = nn.ModuleList(stages)
        self.norm = _norm(config.widths[-1])
        self.head = nn.Linear(config.widths[-1], config.num_classes)
        draw_linear_layers(self)  # published code; convolutions keep torch's own

    def forward(self, images: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch classes"]:
        return self.head(self.norm(self._stages(images)[1][:, 0]))

    def tokens(
        self, images: Float[Tensor, "batch channels height width"]
    ) -> Float[Tensor, "batch tokens dim"]:
        """Return the last stage's normalised tokens: the class token, then the patches row by row."""
        return self.norm(self._stages(images)[1])

    def features(
        self, images: Float[Tensor, "batch channels height width"]
    ) -> list[Float[Tensor, "batch dim rows columns"]]:
        return self._stages(images)[0]

    def _stages(self, images: Tensor) -> tuple[list[Tensor], Tensor]:
        check_images(images, self.config)
        maps, tokens = [images], images
        for stage in self.stages:
            tokens, grid = stage(maps[-1])
            maps.append(tokens_to_map(tokens[:, stage.num_prefix :], grid))
        return maps[1:], tokens


class PVTStage(nn.Module):
    """One stage: patch embedding, positions, blocks.

    Args:
        patches: embeds the previous feature map.
        positions: from a grid to what is added to the prefix tokens and the patches.
        blocks: each is called with the tokens and ``grid``, the rows and columns of the feature map.
        num_prefix: learned tokens before the patches.

    Paper: Wang et al. 2021, figure 3.
    """

    def __init__(
        self,
        *,
        patches: nn.Module,
        positions: nn.Module,
        blocks: Sequence[nn.Module],
        dim: int,
        num_prefix: int,
    ) -> None:
        super().__init__()
        self.num_prefix = num_prefix
        self.patches = patches
        self.prefix = nn.Parameter(torch.zeros(num_prefix, dim)) if num_prefix else None
        if self.prefix is not None:
            nn.init.trunc_normal_(self.prefix, std=0.02)  # published code
        self.positions = positions
        self.blocks = nn.ModuleList(blocks)

    def forward(
        self, x: Float[Tensor, "batch dim_in rows_in columns_in"]
    ) -> tuple[Float[Tensor, "batch tokens dim"], tuple[int, int]]:
        """Return the stage's tokens, and the rows and columns of its grid."""
        x = self.patches(x)  # b d rows columns
        grid = (x.shape[-2], x.shape[-1])
        x = map_to_tokens(x)
        if self.prefix is not None:
            x = torch.cat((self.prefix.to(x.dtype).expand(x.shape[0], -1, -1), x), dim=1)  # b prefix+cells d
        # Under autocast the patches decide the type of the residual stream: float32 would widen it.
        x = x + self.positions(grid).to(x.dtype)
        for block in self.blocks:
            x = block(x, grid=grid)
        return x, grid


def _build_stage(config: PVTConfig, index: int, *, ratio: int, grid: tuple[int, int]) -> PVTStage:
    in_dim = config.widths[index - 1] if index else config.num_channels
    num_prefix = int(index == len(config.widths) - 1)  # the class token joins the last stage
    return PVTStage(
        patches=StridedReduction(in_dim, config.widths[index], ratio=ratio),
        positions=LearnedGridPositions(
            grid, config.widths[index], num_prefix=num_prefix, interpolation="bilinear", antialias=False
        ),
        blocks=[_build_block(config, index, drop_path) for drop_path in config.drop_paths(index)],
        dim=config.widths[index],
        num_prefix=num_prefix,
    )


def _build_block(config: PVTConfig, stage: int, drop_path: float) -> nn.Module:
    dim, heads, ratio = config.widths[stage], config.num_heads[stage], config.reductions[stage]
    mixer: nn.Module = Attention(dim, heads)
    if ratio > 1:
        mixer = ReducedAttention(dim, heads, reduction=StridedReduction(dim, dim, ratio=ratio))
    mlp = MLP(dim, int(dim * config.mlp_ratios[stage]))
    return Block(dim, mixer=mixer, mlp=mlp, norm=_norm, drop_path=drop_path)


_norm = partial(nn.LayerNorm, eps=1e-6)  # published code
