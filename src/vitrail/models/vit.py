"""The Vision Transformer, its data-efficient training's distilled variant, and small ones with a stem.

Papers: Dosovitskiy et al. 2021 (ViT), Touvron et al. 2021 (DeiT), Xiao et al. 2021 (convolutional stem).
Input: any height and width. The image is completed with zeros to whole patches, and the positions are
interpolated to the grid it makes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import ClassVar, Literal, Self

import torch
from jaxtyping import Float
from pydantic import Field, model_validator
from torch import Tensor, nn

from vitrail.config import Config
from vitrail.models.contract import ModelConfig
from vitrail.nn.attention import MultiHeadAttention
from vitrail.nn.blocks import MLP, PreNormBlock
from vitrail.nn.patches import ChannelLayerNorm, ConvStem, PatchEmbed
from vitrail.nn.positions import LearnedGridPositions, SinusoidalGridPositions


class ConvStemConfig(Config):
    """Convolutions before the first block (Xiao et al. 2021)."""

    channels: tuple[int, ...]
    """Channels after each 3x3 convolution."""
    strides: tuple[int, ...]
    """Stride of each; their product divides ``patch_size``, the projection does what they leave."""
    depths: tuple[int, ...] = ()
    """Number of residual blocks of two convolutions after each; empty means none."""
    norm: Literal["layer", "batch"] = "layer"
    """Norm after each convolution: over the channels of a pixel, or over the batch."""


class ViTConfig(ModelConfig):
    """Settings of a Vision Transformer."""

    family: ClassVar[str] = "vit"
    paper: ClassVar[str] = "Dosovitskiy et al. 2021; Touvron et al. 2021 (DeiT); Xiao et al. 2021 (stem)"

    image_size: tuple[int, int] = (224, 224)
    """Height and width in pixels that the positions are made for; other sizes interpolate them."""
    num_channels: int = Field(default=3, ge=1)
    """Channels of the image."""
    patch_size: int = Field(default=16, ge=1)
    """Pixels between neighbouring tokens."""
    stem: Literal["patch"] | ConvStemConfig = "patch"
    """How pixels become tokens: one projection of each patch, or convolutions."""
    width: int = Field(default=768, ge=4)
    """Width of a token."""
    depth: int = Field(default=12, ge=1)
    """Number of blocks."""
    num_heads: int = Field(default=12, ge=1)
    """Heads of attention; divides ``width``."""
    mlp_ratio: float = Field(default=4.0, gt=0)
    """Width of an MLP's hidden layer over ``width``."""
    num_classes: int = Field(default=1000, ge=1)
    """Number of logits."""
    class_token: bool = True
    """Whether a learned token stands before the patches."""
    distilled: bool = False
    """Whether a distillation token with a head of its own stands after the class token (DeiT)."""
    pool: Literal["class", "mean"] = "class"
    """What the head reads: the class token, or the mean over the patches."""
    positions: Literal["learned", "sinusoidal"] = "learned"
    """Positions added to the tokens."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Probability of dropping a value after the positions, in an MLP and at the end of each branch."""
    drop_path: float = Field(default=0.0, ge=0, lt=1)
    """Probability that a sample skips a branch of the last block; it rises linearly from the first's 0."""
    layer_scale: float | None = Field(default=None, gt=0)
    """First value of the factors of each branch's channels; null leaves them out."""
    qkv_bias: bool = True
    """Whether queries, keys and values have a bias."""

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if self.width % self.num_heads:
            raise ValueError(f"num_heads {self.num_heads} does not divide width {self.width}")
        if self.pool == "class" and not self.class_token:
            raise ValueError("pool 'class' needs class_token true; use pool 'mean'")
        if self.distilled and self.pool != "class":
            raise ValueError("distilled true needs pool 'class'")
        if self.positions == "sinusoidal" and self.width % 4:
            raise ValueError(f"sinusoidal positions need a width divisible by 4, not {self.width}")
        if min(self.image_size) < 1:
            raise ValueError(f"image_size {self.image_size} holds no pixel")
        if isinstance(self.stem, ConvStemConfig):
            stride = 1
            for factor in self.stem.strides:
                stride *= factor
            if len(self.stem.channels) != len(self.stem.strides) or stride < 1 or self.patch_size % stride:
                raise ValueError(
                    f"stem needs as many channels as strides, and a product of strides that divides "
                    f"patch_size {self.patch_size}; given {self.stem.channels} and {self.stem.strides}"
                )
            if self.stem.depths and len(self.stem.depths) != len(self.stem.channels):
                raise ValueError(
                    f"stem needs one depth for each of its {len(self.stem.channels)} convolutions"
                )
        return self

    def build(self) -> ViT:
        """Return a new model."""
        return ViT(self)


_TINY = ViTConfig(width=192, depth=12, num_heads=3)  # Touvron et al. 2021, table 1
_SMALL = ViTConfig(width=384, depth=12, num_heads=6)  # Touvron et al. 2021, table 1
_BASE = ViTConfig(width=768, depth=12, num_heads=12)  # Dosovitskiy et al. 2021, table 1
_LARGE = ViTConfig(width=1024, depth=24, num_heads=16)  # Dosovitskiy et al. 2021, table 1
_HUGE = ViTConfig(width=1280, depth=32, num_heads=16, patch_size=14)  # Dosovitskiy et al. 2021, table 1

VARIANTS: dict[str, ModelConfig] = {
    "vit_ti16": _TINY,
    "vit_s16": _SMALL,
    "vit_s32": _SMALL.with_changes({"patch_size": 32}),  # Steiner et al. 2022, table 2
    "vit_b16": _BASE,
    "vit_b32": _BASE.with_changes({"patch_size": 32}),
    "vit_l16": _LARGE,
    "vit_l32": _LARGE.with_changes({"patch_size": 32}),
    "vit_h14": _HUGE,
    "deit_ti16": _TINY.with_changes({"drop_path": 0.1}),  # Touvron et al. 2021, table 9
    "deit_s16": _SMALL.with_changes({"drop_path": 0.1}),
    "deit_b16": _BASE.with_changes({"drop_path": 0.1}),
    "deit_ti16_distilled": _TINY.with_changes({"drop_path": 0.1, "distilled": True}),
    "deit_s16_distilled": _SMALL.with_changes({"drop_path": 0.1, "distilled": True}),
    "deit_b16_distilled": _BASE.with_changes({"drop_path": 0.1, "distilled": True}),
    # Ours, for small images and no pre-training; sized for minutes on a few processor cores.
    "vit_nano": ViTConfig(
        image_size=(32, 32),
        patch_size=4,
        stem=ConvStemConfig(channels=(24, 48), strides=(1, 2)),
        width=96,
        depth=4,
        num_heads=3,
        mlp_ratio=2.0,
        num_classes=10,
        class_token=False,
        pool="mean",
    ),
    "vit_micro": ViTConfig(
        image_size=(32, 32),
        patch_size=4,
        stem=ConvStemConfig(channels=(32, 64, 128), strides=(2, 1, 2), depths=(1, 1, 1), norm="batch"),
        width=128,
        depth=2,
        num_heads=4,
        mlp_ratio=2.0,
        num_classes=10,
        class_token=False,
        pool="mean",
    ),
}


class ViT(nn.Module):
    """Classify images by a Transformer over their patches.

    Args:
        config: the settings; ``VARIANTS`` holds the published ones.

    Paper: Dosovitskiy et al. 2021, equations 1 to 4; the distillation token: Touvron et al. 2021, section 4.
    Departs from the paper: the head starts with small random weights as in DeiT, not with zeros. The two
    heads of a distilled model are averaged in training too, unless a loss takes ``head_logits``.
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.config = config
        self.num_prefix = int(config.class_token) + int(config.distilled)
        self.stem = _build_stem(config)
        self.prefix = nn.Parameter(torch.zeros(self.num_prefix, config.width)) if self.num_prefix else None
        self.positions: nn.Module
        if config.positions == "learned":
            grid = self.grid(*config.image_size)
            self.positions = LearnedGridPositions(grid, config.width, num_prefix=self.num_prefix)
        else:
            self.positions = SinusoidalGridPositions(config.width, num_prefix=self.num_prefix)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(_build_block(config, index) for index in range(config.depth))
        self.norm = _norm(config.width)
        self.head = nn.Linear(config.width, config.num_classes)
        self.distillation_head = nn.Linear(config.width, config.num_classes) if config.distilled else None
        self._initialise()

    def forward(self, images: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch classes"]:
        """Return one logit for each class; the mean of both heads where there are two."""
        heads = self.head_logits(self.tokens(images))
        return heads[0] if len(heads) == 1 else (heads[0] + heads[1]) / 2

    def tokens(
        self, images: Float[Tensor, "batch channels height width"]
    ) -> Float[Tensor, "batch tokens dim"]:
        """Return the tokens after the last norm: prefix tokens first, then the grid row by row."""
        x = self.stem(images)  # b d rows columns
        grid = (x.shape[-2], x.shape[-1])
        x = x.flatten(2).transpose(1, 2)  # b tokens d
        # Under autocast the stem decides the type of the residual stream: float32 positions would widen it.
        positions = self.positions(grid).to(x.dtype)
        if self.prefix is None:
            x = x + positions
        else:
            prefix = self.prefix.to(x.dtype) + positions[: self.num_prefix]
            x = torch.cat((prefix.expand(len(x), -1, -1), x + positions[self.num_prefix :]), dim=1)
        x = self.dropout(x)
        for block in self.blocks:
            x = block(x, grid=grid)
        return self.norm(x)

    def features(
        self, images: Float[Tensor, "batch channels height width"]
    ) -> list[Float[Tensor, "batch dim rows columns"]]:
        """Return the patches' tokens as one feature map, the only stage of this model."""
        cells = self.tokens(images)[:, self.num_prefix :]
        return [
            cells.transpose(1, 2).reshape(len(cells), -1, *self.grid(*images.shape[-2:]))
        ]  # b d rows columns

    def head_logits(self, tokens: Float[Tensor, "batch tokens dim"]) -> list[Float[Tensor, "batch classes"]]:
        """Return the logits of each head from the tokens: the class head's, then the distillation head's."""
        pooled = tokens[:, 0] if self.config.pool == "class" else tokens[:, self.num_prefix :].mean(dim=1)
        if self.distillation_head is None:
            return [self.head(pooled)]
        return [self.head(pooled), self.distillation_head(tokens[:, 1])]

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """Return how many rows and columns of patches an image of that size makes."""
        return -(-height // self.config.patch_size), -(-width // self.config.patch_size)

    def _initialise(self) -> None:
        """Draw every linear layer's weights as DeiT does; the stem and the positions draw their own."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)  # Touvron et al. 2021, section 6
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        if self.prefix is not None:
            nn.init.trunc_normal_(self.prefix, std=0.02)


def _build_stem(config: ViTConfig) -> nn.Module:
    if config.stem == "patch":
        return PatchEmbed(config.num_channels, config.width, patch_size=config.patch_size)
    norms: dict[str, Callable[[int], nn.Module]] = {"layer": ChannelLayerNorm, "batch": nn.BatchNorm2d}
    return ConvStem(
        config.num_channels,
        config.width,
        patch_size=config.patch_size,
        channels=config.stem.channels,
        strides=config.stem.strides,
        depths=config.stem.depths,
        norm=norms[config.stem.norm],
    )


def _build_block(config: ViTConfig, index: int) -> nn.Module:
    return PreNormBlock(
        config.width,
        mixer=MultiHeadAttention(config.width, config.num_heads, qkv_bias=config.qkv_bias),
        mlp=MLP(config.width, int(config.width * config.mlp_ratio), dropout=config.dropout),
        norm=_norm,
        dropout=config.dropout,
        layer_scale=config.layer_scale,
        drop_path=config.drop_path * index / max(config.depth - 1, 1),
    )


_norm = partial(nn.LayerNorm, eps=1e-6)  # the published ViT code's epsilon
