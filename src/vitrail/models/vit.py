"""Vision Transformers: ViT, distilled DeiT, and small ones with a convolutional stem.

Papers: Dosovitskiy et al. 2021 (ViT), Touvron et al. 2021 (DeiT), Xiao et al. 2021 (convolutional stem).
Input: any height and width. The image is zero-padded to whole patches, and the positions are interpolated to
its grid.
"""

from __future__ import annotations

import math
from functools import partial
from typing import ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator
from torch import nn

from vitrail.models.contract import ImageModelConfig, ModelConfig
from vitrail.models.conv_stem import ConvStemConfig
from vitrail.models.skeletons import Isotropic
from vitrail.nn.attention import Attention
from vitrail.nn.blocks import MLP, Block, NormPlace
from vitrail.nn.heads import DistilledHead, FlattenPool, MeanPool, MLPHead, PrefixPool
from vitrail.nn.initialisation import draw_linear_layers
from vitrail.nn.mixers import MIXERS, MixerShape, build_mixer
from vitrail.nn.patches import ChannelLayerNorm, PatchEmbed, PatchMLP
from vitrail.nn.positions import LearnedGridPositions, SinusoidalGridPositions
from vitrail.nn.relative import GridRelativeBias, PairwiseBias
from vitrail.nn.rotary import GridRotary
from vitrail.nn.scores import ScoreName


class ViTConfig(ImageModelConfig):
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
    stem: Literal["patch", "mlp"] | ConvStemConfig = "patch"
    """Patch embedding: one linear layer, two with GELU between them, or convolutions."""
    stem_norm: bool = False
    """Whether a layer norm follows the stem, before positions are added."""
    width: int = Field(default=768, ge=4)
    """Token width."""
    depth: int = Field(default=12, ge=1)
    """Number of blocks."""
    mixer: str = "attention"
    """Token mixer of each block; a file of ``vitrail/nn/mixers``."""
    num_heads: int = Field(default=12, ge=1)
    """Attention heads, or groups of channels of another mixer; divides ``width``."""
    mlp_ratio: float = Field(default=4.0, gt=0)
    """Hidden width of an MLP relative to ``width``."""
    norm_place: NormPlace = "pre"
    """Layer norms of a block: on a branch's input, after the residual sum, or on a branch's output."""
    norm_eps: float = Field(default=1e-6, gt=0)  # Dosovitskiy et al. 2021, published code
    """Added to the variance in every layer norm."""
    class_token: bool = True
    """Whether a learned class token precedes the patches."""
    distilled: bool = False
    """Whether a distillation token with its own head follows the class token (DeiT)."""
    pool: Literal["class", "mean", "flatten"] = "class"
    """What the head reads: the class token, the mean over the patches, or all patches concatenated."""
    head_hidden_dim: int | None = Field(default=None, ge=1)
    """Width of a hidden layer in the head; null makes the head one linear layer."""
    positions: Literal["learned", "sinusoidal", "rotary", "relative_bias", "pairwise", "none"] = "learned"
    """Positions: a learned or sinusoidal table added to the tokens; or in every attention, rotary, a relative
    bias, or a bias for each pair of tokens."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout probability after the positions, in an MLP and at the end of each branch."""
    drop_path: float = Field(default=0.0, ge=0, lt=1)
    """Stochastic-depth rate of the last block, linear from 0."""
    layer_scale: float | None = Field(default=None, gt=0)
    """Initial LayerScale factor; null for no LayerScale."""
    score: ScoreName = "scaled_dot"
    """Attention score."""
    qkv_bias: bool = True
    """Whether queries, keys and values of attention have a bias."""

    @property
    def min_size(self) -> int:
        return self.patch_size

    @property
    def num_prefix(self) -> int:
        """Tokens before the patches."""
        return int(self.class_token) + int(self.distilled)

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches at ``image_size``."""
        return -(-self.image_size[0] // self.patch_size), -(-self.image_size[1] // self.patch_size)

    @model_validator(mode="after")
    def _check_tokens(self) -> Self:
        if self.width % self.num_heads:
            raise ValueError(f"num_heads {self.num_heads} does not divide width {self.width}")
        if self.positions == "sinusoidal" and self.width % 4:
            raise ValueError(f"sinusoidal positions need a width divisible by 4, not {self.width}")
        if self.positions == "rotary" and self.width // self.num_heads % 4:
            raise ValueError(
                f"rotary positions need heads of a width divisible by 4, not {self.width // self.num_heads}"
            )
        return self

    @field_validator("mixer")
    @classmethod
    def _check_mixer_name(cls, name: str) -> str:
        if name != "attention":  # known without searching the folder
            MIXERS[name]  # raises for an unknown name, with the nearest one
        return name

    @model_validator(mode="after")
    def _check_mixer(self) -> Self:
        set_for_attention = {
            "qkv_bias": not self.qkv_bias,
            "score": self.score != "scaled_dot",
            "positions": self.positions in ("rotary", "relative_bias", "pairwise"),
        }
        name = next((name for name, is_set in set_for_attention.items() if is_set), None)
        if name is not None and self.mixer != "attention":
            raise ValueError(f"{name} {getattr(self, name)!r} needs mixer 'attention', not {self.mixer!r}")
        return self

    @model_validator(mode="after")
    def _check_head(self) -> Self:
        if self.pool == "class" and not self.class_token:
            raise ValueError("pool 'class' needs class_token true; use pool 'mean'")
        if self.distilled and (self.pool != "class" or self.head_hidden_dim is not None):
            raise ValueError("distilled true needs pool 'class' and head_hidden_dim null")
        return self

    @model_validator(mode="after")
    def _check_stem(self) -> Self:
        if min(self.image_size) < 1:
            raise ValueError(f"image_size {self.image_size} holds no pixel")
        if isinstance(self.stem, ConvStemConfig):
            self.stem.check(self.patch_size)
        return self

    def build(self) -> Isotropic:
        """Paper: Dosovitskiy et al. 2021, equations 1 to 4; the distillation token: Touvron et al. 2021,
        section 4.
        Departs from the paper: the head starts with small random weights as in DeiT, not with zeros.
        """
        is_post = self.norm_place == "post"  # post-norm: the last block ends with a norm
        return Isotropic(
            self,
            stem=_build_stem(self),
            blocks=[_build_block(self, index) for index in range(self.depth)],
            norm=nn.Identity() if is_post else nn.LayerNorm(self.width, eps=self.norm_eps),
            pool=_build_pool(self),
            head=_build_head(self),
            positions=_build_positions(self),
            num_prefix=self.num_prefix,
            dropout=self.dropout,
        )


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
    # Ours, for small images without pretraining; trains in minutes on a few CPU cores.
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


def _build_stem(config: ViTConfig) -> nn.Module:
    stem: nn.Module
    if isinstance(config.stem, ConvStemConfig):
        stem = config.stem.build(config.num_channels, config.width, patch_size=config.patch_size)
    else:
        embed = {"patch": PatchEmbed, "mlp": PatchMLP}[config.stem]
        stem = embed(config.num_channels, config.width, patch_size=config.patch_size)
    if not config.stem_norm:
        return stem
    return nn.Sequential(stem, ChannelLayerNorm(config.width, eps=config.norm_eps))


def _build_positions(config: ViTConfig) -> nn.Module | None:
    if config.positions == "learned":
        return LearnedGridPositions(config.grid, config.width, num_prefix=config.num_prefix)
    if config.positions == "sinusoidal":
        return SinusoidalGridPositions(config.width, num_prefix=config.num_prefix)
    return None


def _build_positions_in_attention(config: ViTConfig) -> nn.Module | None:
    if config.positions == "rotary":
        return GridRotary()
    if config.positions == "relative_bias":
        return GridRelativeBias(config.grid, config.num_heads, num_prefix=config.num_prefix)
    if config.positions == "pairwise":
        return PairwiseBias(config.grid, config.num_heads, num_prefix=config.num_prefix)
    return None


def _build_block(config: ViTConfig, index: int) -> nn.Module:
    mlp = MLP(config.width, int(config.width * config.mlp_ratio), dropout=config.dropout)
    draw_linear_layers(mlp)
    return Block(
        config.width,
        mixer=_build_mixer(config),
        mlp=mlp,
        norm=partial(nn.LayerNorm, eps=config.norm_eps),
        norm_place=config.norm_place,
        dropout=config.dropout,
        layer_scale=config.layer_scale,
        drop_path=config.drop_path * index / max(config.depth - 1, 1),
    )


def _build_mixer(config: ViTConfig) -> nn.Module:
    if config.mixer == "attention":
        attention = Attention(
            config.width,
            config.num_heads,
            qkv_bias=config.qkv_bias,
            score=config.score,
            positions=_build_positions_in_attention(config),
        )
        draw_linear_layers(attention.qkv)
        draw_linear_layers(attention.projection)
        return attention
    num_tokens = config.num_prefix + math.prod(config.grid)
    return build_mixer(config.mixer, MixerShape(config.width, config.num_heads, num_tokens, config.grid))


def _build_pool(config: ViTConfig) -> nn.Module:
    if config.pool == "class":
        return PrefixPool(num_read=2 if config.distilled else 1)
    if config.pool == "mean":
        return MeanPool(num_prefix=config.num_prefix)
    return FlattenPool(config.grid, num_prefix=config.num_prefix)


def _build_head(config: ViTConfig) -> nn.Module:
    dim = config.width * math.prod(config.grid) if config.pool == "flatten" else config.width
    head: nn.Module
    if config.distilled:
        head = DistilledHead(dim, config.num_classes)
    elif config.head_hidden_dim is not None:
        head = MLPHead(dim, config.head_hidden_dim, config.num_classes)
    else:
        head = nn.Linear(dim, config.num_classes)
    draw_linear_layers(head)
    return head
