"""Pyramid Vision Transformer: four stages of attention with spatially reduced keys.

Paper: Wang et al. 2021. Input: any height and width. Maps are zero-padded to whole patches and to whole
squares of reduced keys, and each stage's positions are interpolated to its grid.
"""

from __future__ import annotations

from functools import partial
from typing import ClassVar, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from vitrail.models.contract import ImageModelConfig, ModelConfig, check_images
from vitrail.nn.attention import Attention
from vitrail.nn.blocks import MLP, Block, drop_path_stages
from vitrail.nn.feature_maps import coarser_grid, flatten_map, tokens_to_map
from vitrail.nn.linear import draw_linear_layers
from vitrail.nn.positions import LearnedGridPositions
from vitrail.nn.reduction import ReducedAttention, StridedReduction
from vitrail.nn.tokens import FeatureMap, Grid, Images, InputMap, Logits, Tokens


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

    def drop_paths(self, stage: int) -> list[float]:
        """Return the stochastic-depth rate of each block of a stage."""
        return drop_path_stages(self.drop_path, self.depths)[stage]

    def build(self) -> nn.Module:
        return PVT(self)


VARIANTS: dict[str, ModelConfig] = {  # Wang et al. 2021, table 1; drop paths of the published code
    "pvt_t": PVTConfig(depths=(2, 2, 2, 2), drop_path=0.1),
    "pvt_s": PVTConfig(depths=(3, 4, 6, 3), drop_path=0.1),
    "pvt_m": PVTConfig(depths=(3, 4, 18, 3), drop_path=0.3),
    "pvt_l": PVTConfig(depths=(3, 8, 27, 3), drop_path=0.3),
}


class PVT(nn.Module):
    """Classify images by a class token that is added in the last stage.

    Paper: Wang et al. 2021, section 3.1 and figure 3.
    """

    def __init__(self, config: PVTConfig) -> None:
        super().__init__()
        self.config, self.num_prefix = config, 1
        self.stages, grid = nn.ModuleList(), config.image_size
        for index in range(len(config.widths)):
            ratio = 2 if index else config.patch_size
            grid = coarser_grid(grid, ratio)
            self.stages.append(PVTStage(config, index, ratio=ratio, grid=grid))
        self.norm = _norm(config.widths[-1])
        self.head = nn.Linear(config.widths[-1], config.num_classes)
        draw_linear_layers(self)  # published code; convolutions keep torch's own

    def forward(self, images: Images) -> Logits:
        return self.head(self.norm(self._run_stages(images)[1][:, 0]))

    def tokens(self, images: Images) -> Tokens:
        """Return the last stage's normalised tokens: the class token, then the patches row by row."""
        return self.norm(self._run_stages(images)[1])

    def features(self, images: Images) -> list[FeatureMap]:
        return self._run_stages(images)[0]

    def _run_stages(self, images: Tensor) -> tuple[list[Tensor], Tensor]:
        check_images(images, self.config)
        maps, tokens = [images], images
        for stage in self.stages:
            tokens, grid = stage(maps[-1])
            maps.append(tokens_to_map(tokens[:, stage.num_prefix :], grid))
        return maps[1:], tokens


class PVTStage(nn.Module):
    """One stage: patch embedding, positions, blocks; the last one's tokens begin with the class token.

    Args:
        ratio: side of a patch, in positions of the previous feature map.
        grid: rows and columns of the stage's positions at the native size.

    Paper: Wang et al. 2021, figure 3.
    """

    def __init__(self, config: PVTConfig, stage: int, *, ratio: int, grid: Grid) -> None:
        super().__init__()
        dim = config.widths[stage]
        self.num_prefix = int(stage == len(config.widths) - 1)
        # Built, and so drawn, in this order; registered in the order in which they are used.
        patches = StridedReduction(
            config.widths[stage - 1] if stage else config.num_channels, dim, ratio=ratio
        )
        positions = LearnedGridPositions(
            grid, dim, num_prefix=self.num_prefix, interpolation="bilinear", antialias=False
        )
        blocks = [_build_block(config, stage, drop_path) for drop_path in config.drop_paths(stage)]
        self.prefix = nn.Parameter(torch.zeros(self.num_prefix, dim)) if self.num_prefix else None
        if self.prefix is not None:
            nn.init.trunc_normal_(self.prefix, std=0.02)  # published code
        self.patches, self.positions, self.blocks = patches, positions, nn.ModuleList(blocks)

    def forward(self, x: InputMap) -> tuple[Tokens, Grid]:
        """Return the stage's tokens, and the rows and columns of its grid."""
        x, grid = flatten_map(self.patches(x))  # b patches d
        if self.prefix is not None:
            x = torch.cat((self.prefix.to(x.dtype).expand(x.shape[0], -1, -1), x), dim=1)  # b 1+patches d
        # Under autocast the patches decide the type of the residual stream: float32 would widen it.
        x = x + self.positions(grid).to(x.dtype)
        for block in self.blocks:
            x = block(x, grid=grid)
        return x, grid


def _build_block(config: PVTConfig, stage: int, drop_path: float) -> nn.Module:
    dim, heads, ratio = config.widths[stage], config.num_heads[stage], config.reductions[stage]
    mixer: nn.Module = Attention(dim, heads)
    if ratio > 1:
        mixer = ReducedAttention(dim, heads, reduction=StridedReduction(dim, dim, ratio=ratio))
    mlp = MLP(dim, int(dim * config.mlp_ratios[stage]))
    return Block(dim, mixer=mixer, mlp=mlp, norm=_norm, drop_path=drop_path)


_norm = partial(nn.LayerNorm, eps=1e-6)  # published code
