"""Variations of the Vision Transformer: stems x norms x positions x scores x token mixers x pools.

No paper describes this space as a whole. It is built from the layers of the papers that are named beside each
part, so that one part can be changed while all others stay. ``models/vit.py`` is the paper's own model.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import torch
from pydantic import Field
from torch import nn

from vitrail.core.config import Config
from vitrail.models.block_settings import BlockSettings, check_blocks, split_positions
from vitrail.models.contract import ImageModelConfig, check_images
from vitrail.models.pyramid import Plain
from vitrail.nn.attention import Attention
from vitrail.nn.blocks import MLP, Block, Dropout, NormPlace, drop_path_rates
from vitrail.nn.convolution import ChannelLayerNorm
from vitrail.nn.feature_maps import flatten_map
from vitrail.nn.heads import DistilledHead, FlattenPool, MeanPool, MLPHead, PrefixPool
from vitrail.nn.linear import draw_linear_layers
from vitrail.nn.mixers import MixerShape, build_mixer
from vitrail.nn.patches import PatchEmbed
from vitrail.nn.positions import LearnedGridPositions
from vitrail.nn.relative import GridRelativeBias, PairwiseBias
from vitrail.nn.rotary import GridRotary
from vitrail.nn.scores import ScoreName
from vitrail.nn.sinusoidal import SinusoidalGridPositions
from vitrail.nn.stems import NUM_GROUPS, ConvStem, PatchMLP, ResNetStem, resnet_stride
from vitrail.nn.tokens import Grid, Images, Logits, Tokens

if TYPE_CHECKING:
    from vitrail.models.vit import ViTConfig


class ConvStemConfig(Config):
    """Settings of a convolutional stem (Xiao et al. 2021)."""

    channels: tuple[int, ...]
    """Channels after each 3x3 convolution."""
    strides: tuple[int, ...]
    """Stride of each convolution; their product divides ``patch_size``, the projection does the rest."""
    depths: tuple[int, ...] = ()
    """Number of residual blocks of two convolutions after each; empty means none."""
    norm: Literal["layer", "batch"] = "layer"
    """Norm after each convolution: layer norm over the channels of a pixel, or batch norm."""

    def check(self, patch_size: int) -> None:
        """Check lengths and strides.

        Raises:
            ValueError: the lists differ in length, or the strides do not divide the patch size.
        """
        stride = math.prod(self.strides)
        if len(self.channels) != len(self.strides) or stride < 1 or patch_size % stride:
            raise ValueError(
                f"stem needs as many channels as strides, and a product of strides that divides "
                f"patch_size {patch_size}; given {self.channels} and {self.strides}"
            )
        if self.depths and len(self.depths) != len(self.channels):
            raise ValueError(f"stem needs one depth for each of its {len(self.channels)} convolutions")

    def build(self, num_channels: int, width: int, *, patch_size: int) -> ConvStem:
        norms: dict[str, Callable[[int], nn.Module]] = {"layer": ChannelLayerNorm, "batch": nn.BatchNorm2d}
        return ConvStem(
            num_channels,
            width,
            patch_size=patch_size,
            channels=self.channels,
            strides=self.strides,
            depths=self.depths,
            norm=norms[self.norm],
        )


class ResNetStemConfig(Config):
    """Settings of a residual network as stem: a hybrid (Dosovitskiy et al. 2021, section 3.1)."""

    depths: tuple[int, ...]
    """Number of blocks of each stage; empty for a convolution and max-pooling alone."""
    width: int = Field(default=64, ge=1)
    """Channels of the first convolution; stages have 4, 8, 16 and 32 times as many."""

    def check(self, patch_size: int) -> None:
        """Check depths, width and stride.

        Raises:
            ValueError: a stage has no block, the norms' groups do not divide the width, or the stages' stride
                does not divide the patch size.
        """
        if min(self.depths, default=1) < 1:
            raise ValueError(f"stem needs at least one block in each stage, not depths {self.depths}")
        if self.width % NUM_GROUPS:
            raise ValueError(f"the {NUM_GROUPS} groups of stem's norms do not divide width {self.width}")
        if patch_size % resnet_stride(self.depths):
            raise ValueError(
                f"stem has a stride of {resnet_stride(self.depths)}, which does not divide "
                f"patch_size {patch_size}; each stage after the first doubles it"
            )

    def build(self, num_channels: int, width: int, *, patch_size: int) -> ResNetStem:
        return ResNetStem(num_channels, width, patch_size=patch_size, depths=self.depths, width=self.width)


_AT_32_PIXELS = {"image_size": (32, 32), "patch_size": 4, "mlp_ratio": 2.0, "num_classes": 10}
_WITHOUT_CLASS_TOKEN = {"class_token": False, "pool": "mean"}
SMALL_IMAGES: dict[str, dict[str, Any]] = {
    "vit_nano": {
        **_AT_32_PIXELS,
        **_WITHOUT_CLASS_TOKEN,
        "stem": ConvStemConfig(channels=(24, 48), strides=(1, 2)),
        "width": 96,
        "depth": 4,
        "num_heads": 3,
    },
    "vit_micro": {
        **_AT_32_PIXELS,
        **_WITHOUT_CLASS_TOKEN,
        "stem": ConvStemConfig(channels=(32, 64, 128), strides=(2, 1, 2), depths=(1, 1, 1), norm="batch"),
        "width": 128,
        "depth": 2,
        "num_heads": 4,
    },
}
"""Our own variations for small images without pretraining; they train in minutes on a few CPU cores."""


OnePosition = Literal["learned", "sinusoidal", "rotary", "relative_bias", "pairwise", "none"]
BothPositions = Literal[
    "learned+rotary", "learned+relative_bias", "sinusoidal+rotary", "sinusoidal+relative_bias"
]


class ViTVariations(BlockSettings, ImageModelConfig):
    """Settings in which a Vision Transformer may depart from its paper; the defaults do not."""

    stem: Literal["patch", "mlp"] | ConvStemConfig | ResNetStemConfig = "patch"
    """Patch embedding: one linear layer, two with GELU between them, convolutions, or a residual network."""
    stem_norm: bool = False
    """Whether a layer norm follows the stem, before positions are added."""
    norm_place: NormPlace = "pre"
    """Norms of a block: on a branch's input, after the residual sum, or on a branch's output."""
    class_token: bool = True
    """Whether a learned class token precedes the patches."""
    pool: Literal["class", "mean", "flatten"] = "class"
    """What the head reads: the class token, the mean over the patches, or all patches concatenated."""
    head_hidden_dim: int | None = Field(default=None, ge=1)
    """Width of a hidden layer in the head; null makes the head one linear layer."""
    positions: Literal[OnePosition, BothPositions] = "learned"
    """Positions: a learned or sinusoidal table added to the tokens; in every attention, rotary, a relative
    bias, or a bias for each pair of tokens; or one of each, as in ``learned+relative_bias``."""
    layer_scale: float | None = Field(default=None, gt=0)
    """Initial LayerScale factor; null for no LayerScale."""
    score: ScoreName = "scaled_dot"
    """Attention score."""

    @property
    def is_varied(self) -> bool:
        """Whether any of these settings departs from the paper."""
        own = ViTVariations.model_fields.keys() - ImageModelConfig.model_fields.keys()
        return any(getattr(self, name) != ViTVariations.model_fields[name].default for name in own)


def check_variations(config: ViTConfig) -> None:
    """Check the settings together.

    Raises:
        ValueError: two of them exclude each other.
    """
    head_dim = check_blocks(config, config.width, config.num_heads, (config.mixer,))
    added, in_attention = split_positions(config.positions)
    if added == "sinusoidal" and config.width % 4:
        raise ValueError(f"sinusoidal positions need a width divisible by 4, not {config.width}")
    if in_attention == "rotary" and head_dim % 4:
        raise ValueError(f"rotary positions need heads of a width divisible by 4, not {head_dim}")
    set_for_attention = {
        "qkv_bias": not config.qkv_bias,
        "score": config.score != "scaled_dot",
        "positions": in_attention != "none",
        "head_dim": config.head_dim is not None,
        "value_dim": config.value_dim is not None,
    }
    name = next((name for name, is_set in set_for_attention.items() if is_set), None)
    if name is not None and config.mixer != "attention":
        raise ValueError(f"{name} {getattr(config, name)!r} needs mixer 'attention', not {config.mixer!r}")
    if config.pool == "class" and not config.class_token:
        raise ValueError("pool 'class' needs class_token true; use pool 'mean'")
    if config.distilled and (config.pool != "class" or config.head_hidden_dim is not None):
        raise ValueError("distilled true needs pool 'class' and head_hidden_dim null")
    if isinstance(config.stem, ConvStemConfig | ResNetStemConfig):
        config.stem.check(config.patch_size)


class VariedViT(Plain):
    """A Vision Transformer of any variation; its parts have the names of those in ``models.vit.ViT``."""

    positions: nn.Module | None

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.config, self.num_prefix = config, config.num_prefix
        # Built, and so drawn, in this order; registered in the order in which they are used.
        stem = _build_stem(config)
        rates = drop_path_rates(config.drop_path, config.depth)
        blocks = [_build_block(config, index, rate) for index, rate in enumerate(rates)]
        head = draw_linear_layers(_build_head(config))
        positions = _build_positions(config)
        self.prefix: nn.Parameter | None = None
        if self.num_prefix:
            self.prefix = nn.Parameter(torch.zeros(self.num_prefix, config.width))
            nn.init.trunc_normal_(self.prefix, std=0.02)  # Touvron et al. 2021, published code
        self.stem = stem
        self.register_module("positions", positions)
        self.dropout = Dropout(config.dropout)
        self.blocks = nn.ModuleList(blocks)
        is_post = config.norm_place == "post"  # the last block ends with a norm
        self.norm = nn.Identity() if is_post else config.make_norm(config.norm_eps)(config.width)
        self.pool = _build_pool(config)
        self.head = head

    def forward(self, images: Images) -> Logits:
        return self.classify(*self.tokens_and_grid(images))

    def tokens_and_grid(self, images: Images) -> tuple[Tokens, Grid]:
        x, grid = self.embed(images)
        for block in self.blocks:
            x = block(x, grid=grid)
        return self.norm(x), grid

    def embed(self, images: Images) -> tuple[Tokens, Grid]:
        """Return the first block's input, and the grid of its patches."""
        check_images(images, self.config)
        x, grid = flatten_map(self.stem(images))  # b patches d
        # Under autocast the stem decides the type of the residual stream: float32 positions would widen it.
        positions = None if self.positions is None else self.positions(grid).to(x.dtype)
        if self.prefix is not None:
            prefix = self.prefix.to(x.dtype)
            if positions is not None:
                prefix, x = prefix + positions[: self.num_prefix], x + positions[self.num_prefix :]
            x = torch.cat((prefix.expand(x.shape[0], -1, -1), x), dim=1)  # b prefix+patches d
        elif positions is not None:
            x = x + positions
        return self.dropout(x), grid

    def classify(self, tokens: Tokens, grid: Grid) -> Logits:
        """Return logits from the normalised tokens."""
        return self.head(self.pool(tokens, grid=grid))


def _build_stem(config: ViTConfig) -> nn.Module:
    stem: nn.Module
    if isinstance(config.stem, ConvStemConfig | ResNetStemConfig):
        stem = config.stem.build(config.num_channels, config.width, patch_size=config.patch_size)
    else:
        embed = {"patch": PatchEmbed, "mlp": PatchMLP}[config.stem]
        stem = embed(config.num_channels, config.width, patch_size=config.patch_size)
    if not config.stem_norm:
        return stem
    return nn.Sequential(stem, ChannelLayerNorm(config.width, eps=config.norm_eps))


def _build_positions(config: ViTConfig) -> nn.Module | None:
    added, _ = split_positions(config.positions)
    if added == "learned":
        return LearnedGridPositions(config.grid, config.width, num_prefix=config.num_prefix)
    if added == "sinusoidal":
        return SinusoidalGridPositions(config.width, num_prefix=config.num_prefix)
    return None


def _build_positions_in_attention(config: ViTConfig) -> nn.Module | None:
    _, in_attention = split_positions(config.positions)
    if in_attention == "rotary":
        return GridRotary()
    if in_attention == "relative_bias":
        return GridRelativeBias(config.grid, config.num_heads, num_prefix=config.num_prefix)
    if in_attention == "pairwise":
        return PairwiseBias(config.grid, config.num_heads, num_prefix=config.num_prefix)
    return None


def _build_block(config: ViTConfig, index: int, drop_path: float) -> nn.Module:
    mlp = MLP(config.width, int(config.width * config.mlp_ratio), dropout=config.dropout)
    return Block(
        config.width,
        mlp=draw_linear_layers(mlp),
        mixer=_build_mixer(config, index),
        norm=config.make_norm(config.norm_eps),
        norm_place=config.norm_place,
        dropout=config.dropout,
        layer_scale=config.layer_scale,
        drop_path=drop_path,
    )


def _build_mixer(config: ViTConfig, index: int) -> nn.Module:
    if config.mixer != "attention":
        num_tokens = config.num_prefix + math.prod(config.grid)
        shape = MixerShape(
            config.width,
            config.num_heads,
            num_tokens,
            config.grid,
            kernel_size=config.kernel_size(index),
            kernel_dropout=config.kernel_dropout,
        )
        return build_mixer(config.mixer, shape)
    attention = Attention(
        config.width,
        config.num_heads,
        qkv_bias=config.qkv_bias,
        head_dim=config.head_dim,
        value_dim=config.value_dim,
        score=config.score,
        positions=_build_positions_in_attention(config),
    )
    return draw_linear_layers(attention)


def _build_pool(config: ViTConfig) -> nn.Module:
    if config.pool == "class":
        return PrefixPool(num_read=2 if config.distilled else 1)
    if config.pool == "mean":
        return MeanPool(num_prefix=config.num_prefix)
    return FlattenPool(config.grid, num_prefix=config.num_prefix)


def _build_head(config: ViTConfig) -> nn.Module:
    dim = config.width * math.prod(config.grid) if config.pool == "flatten" else config.width
    if config.distilled:
        return DistilledHead(dim, config.num_classes)
    if config.head_hidden_dim is not None:
        return MLPHead(dim, config.head_hidden_dim, config.num_classes)
    return nn.Linear(dim, config.num_classes)
