"""Vision Transformers: ViT and distilled DeiT, as in their papers.

Papers: Dosovitskiy et al. 2021 (ViT), Touvron et al. 2021 (DeiT).
Input: any height and width. The image is zero-padded to whole patches, and the positions are interpolated to
its grid. Hybrids and variations of stem, norm, mixer, positions and pool are in ``models/ablations.py``.
"""

from __future__ import annotations

from functools import partial
from typing import ClassVar, Self

import torch
from pydantic import Field, model_validator
from torch import nn

from vitrail.models.ablations import SMALL_IMAGES, VariedViT, ViTVariations, check_variations
from vitrail.models.contract import ModelConfig, check_images
from vitrail.models.pyramid import Plain
from vitrail.nn.attention import Attention
from vitrail.nn.blocks import MLP, Block, Dropout, drop_path_rates
from vitrail.nn.feature_maps import coarser_grid, flatten_map
from vitrail.nn.heads import DistilledHead
from vitrail.nn.linear import draw_linear_layers
from vitrail.nn.patches import PatchEmbed
from vitrail.nn.positions import LearnedGridPositions
from vitrail.nn.tokens import Grid, Images, Logits, Tokens


class ViTConfig(ViTVariations):
    """Settings of a Vision Transformer."""

    family: ClassVar[str] = "vit"
    paper: ClassVar[str] = "Dosovitskiy et al. 2021; Touvron et al. 2021 (DeiT); Xiao et al. 2021 (stem)"
    position_policy: ClassVar[str] = (
        "learned positions and biases are interpolated (bicubic) to the image's grid, sinusoidal and rotary "
        "ones computed for it"
    )
    size_policy: ClassVar[str] = (
        "completed with zeros below and to the right to whole patches; pool 'flatten' resamples the tokens "
        "to the grid of image_size"
    )

    patch_size: int = Field(default=16, ge=1)
    """Height and width of a patch in pixels."""
    width: int = Field(default=768, ge=4)
    """Token width."""
    depth: int = Field(default=12, ge=1)
    """Number of blocks."""
    num_heads: int = Field(default=12, ge=1)
    """Attention heads, or groups of channels of another mixer; divides ``width``."""
    mlp_ratio: float = Field(default=4.0, gt=0)
    """Hidden width of an MLP relative to ``width``."""
    qkv_bias: bool = True
    """Whether queries, keys and values of attention have a bias."""
    norm_eps: float = Field(default=1e-6, gt=0)  # Dosovitskiy et al. 2021, published code
    """Added to the variance in every layer norm."""
    distilled: bool = False
    """Whether a distillation token with its own head follows the class token (DeiT)."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout probability after the positions, in an MLP and at the end of each branch."""
    drop_path: float = Field(default=0.0, ge=0, lt=1)
    """Stochastic-depth rate of the last block, linear from 0."""

    @property
    def num_prefix(self) -> int:
        """Tokens before the patches."""
        return int(self.class_token) + int(self.distilled)

    @property
    def grid(self) -> Grid:
        """Rows and columns of patches at ``image_size``."""
        return coarser_grid(self.image_size, self.patch_size)

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if min(self.image_size) < 1:
            raise ValueError(f"image_size {self.image_size} holds no pixel")
        check_variations(self)
        return self

    def build(self) -> ViT | VariedViT:
        return VariedViT(self) if self.is_varied else ViT(self)


class ViT(Plain):
    """Vision Transformer: an image is a sentence of patches.

    Paper: Dosovitskiy et al. 2021, equations 1 to 4; the distillation token: Touvron et al. 2021, section 4.
    Departs from the paper: the head starts with small random weights as in DeiT, not with zeros.
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.config, self.num_prefix, width = config, config.num_prefix, config.width
        # Built, and so drawn, in this order; registered in the order in which they are used.
        stem = PatchEmbed(config.num_channels, width, patch_size=config.patch_size)
        blocks = [_build_block(config, rate) for rate in drop_path_rates(config.drop_path, config.depth)]
        head = draw_linear_layers(
            (DistilledHead if config.distilled else nn.Linear)(width, config.num_classes)
        )
        positions = LearnedGridPositions(config.grid, width, num_prefix=self.num_prefix)
        self.prefix = nn.Parameter(torch.zeros(self.num_prefix, width))  # class token, distillation token
        nn.init.trunc_normal_(self.prefix, std=0.02)  # Touvron et al. 2021, published code
        self.stem, self.positions = stem, positions
        self.dropout = Dropout(config.dropout)
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.LayerNorm(width, eps=config.norm_eps)
        self.head = head

    def forward(self, images: Images) -> Logits:
        return self.classify(*self.tokens_and_grid(images))

    def tokens_and_grid(self, images: Images) -> tuple[Tokens, Grid]:
        x, grid = self.embed(images)
        for block in self.blocks:
            x = block(x, grid=grid)  # equations 2 and 3
        return self.norm(x), grid

    def embed(self, images: Images) -> tuple[Tokens, Grid]:
        """Return patches with their positions after the prefix tokens (equation 1), and the patches' grid."""
        check_images(images, self.config)
        x, grid = flatten_map(self.stem(images))  # b patches d
        # Under autocast the stem decides the type of the residual stream: float32 positions would widen it.
        positions, prefix = self.positions(grid).to(x.dtype), self.prefix.to(x.dtype)
        prefix, x = prefix + positions[: self.num_prefix], x + positions[self.num_prefix :]
        x = torch.cat((prefix.expand(x.shape[0], -1, -1), x), dim=1)  # b prefix+patches d
        return self.dropout(x), grid

    def classify(self, tokens: Tokens, grid: Grid) -> Logits:
        """Return logits from the class token (equation 4), or both prefix tokens of a distilled model."""
        return self.head(tokens[:, :2] if self.config.distilled else tokens[:, 0])


def _build_block(config: ViTConfig, drop_path: float) -> Block:
    mlp = draw_linear_layers(MLP(config.width, int(config.width * config.mlp_ratio), dropout=config.dropout))
    return Block(
        config.width,
        mixer=draw_linear_layers(Attention(config.width, config.num_heads, qkv_bias=config.qkv_bias)),
        mlp=mlp,
        norm=partial(nn.LayerNorm, eps=config.norm_eps),
        dropout=config.dropout,
        drop_path=drop_path,
    )


_TINY = ViTConfig(width=192, depth=12, num_heads=3)  # Touvron et al. 2021, table 1
_SMALL = ViTConfig(width=384, depth=12, num_heads=6)  # Touvron et al. 2021, table 1
_BASE = ViTConfig(width=768, depth=12, num_heads=12)  # Dosovitskiy et al. 2021, table 1
_LARGE = ViTConfig(width=1024, depth=24, num_heads=16)  # Dosovitskiy et al. 2021, table 1
_HUGE = ViTConfig(width=1280, depth=32, num_heads=16, patch_size=14)  # Dosovitskiy et al. 2021, table 1
_DISTILLED = {"drop_path": 0.1, "distilled": True}
_R50 = {"depths": (3, 4, 6, 3)}
_R50_FINE = {
    "depths": (3, 4, 9)
}  # Dosovitskiy et al. 2021, section 4.1: the last stage's blocks join the third

VARIANTS: dict[str, ModelConfig] = {
    "vit_ti16": _TINY,
    "vit_s16": _SMALL,
    "vit_s32": _SMALL.with_changes({"patch_size": 32}),  # Steiner et al. 2022, table 2
    "vit_b16": _BASE,
    "vit_b32": _BASE.with_changes({"patch_size": 32}),
    "vit_l16": _LARGE,
    "vit_l32": _LARGE.with_changes({"patch_size": 32}),
    "vit_h14": _HUGE,
    # Hybrids: Dosovitskiy et al. 2021, table 6; Ti and S, both with patches of 32 pixels: Steiner et al. 2022
    "vit_r_ti16": _TINY.with_changes({"patch_size": 32, "stem": {"depths": ()}}),
    "vit_r26_s32": _SMALL.with_changes({"patch_size": 32, "stem": {"depths": (2, 2, 2, 2)}}),
    "vit_r50_b16": _BASE.with_changes({"stem": _R50_FINE}),
    "vit_r50_b32": _BASE.with_changes({"patch_size": 32, "stem": _R50}),
    "vit_r50_l16": _LARGE.with_changes({"stem": _R50_FINE}),
    "vit_r50_l32": _LARGE.with_changes({"patch_size": 32, "stem": _R50}),
    "deit_ti16": _TINY.with_changes({"drop_path": 0.1}),  # Touvron et al. 2021, table 9
    "deit_s16": _SMALL.with_changes({"drop_path": 0.1}),
    "deit_b16": _BASE.with_changes({"drop_path": 0.1}),
    "deit_ti16_distilled": _TINY.with_changes(_DISTILLED),
    "deit_s16_distilled": _SMALL.with_changes(_DISTILLED),
    "deit_b16_distilled": _BASE.with_changes(_DISTILLED),
    **{name: ViTConfig(**settings) for name, settings in SMALL_IMAGES.items()},
}
