"""MLP-Mixer: alternating MLPs over the patches and over the channels.

Paper: Tolstikhin et al. 2021. Input: any height and width. The image is zero-padded to whole patches, and
the token-mixing weights are resampled to its grid.
"""

from __future__ import annotations

import math
from functools import partial
from typing import ClassVar

from pydantic import Field
from torch import nn

from vitrail.models.contract import ImageModelConfig, ModelConfig, check_images
from vitrail.nn.blocks import MLP, Block, drop_path_rates
from vitrail.nn.feature_maps import coarser_grid, flatten_map, map_to_tokens, tokens_to_map
from vitrail.nn.mixers.contract import MixerShape
from vitrail.nn.mixers.token_mlp import TokenMLP
from vitrail.nn.patches import PatchEmbed
from vitrail.nn.tokens import FeatureMap, Images, Logits, Tokens


class MLPMixerConfig(ImageModelConfig):
    """Settings of an MLP-Mixer."""

    family: ClassVar[str] = "mlp_mixer"
    paper: ClassVar[str] = "Tolstikhin et al. 2021"
    position_policy: ClassVar[str] = (
        "none; the token-mixing weights belong to positions, and at another size they act as if the patches "
        "were resampled to the native grid and back, bilinearly"
    )
    size_policy: ClassVar[str] = "completed with zeros, below and to the right, to whole patches"

    patch_size: int = Field(default=16, ge=1)
    """Height and width of a patch in pixels."""
    width: int = Field(default=768, ge=1)
    """Width of a token."""
    depth: int = Field(default=12, ge=1)
    """Number of blocks."""
    token_hidden_dim: int = Field(default=384, ge=1)
    """Hidden width of the MLP over patches."""
    channel_hidden_dim: int = Field(default=3072, ge=1)
    """Hidden width of the MLP over channels."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout probability in the MLP over channels and at the end of each branch."""
    drop_path: float = Field(default=0.0, ge=0, lt=1)
    """Stochastic-depth rate of the last block, linear from 0."""

    def build(self) -> MLPMixer:
        return MLPMixer(self)


class MLPMixer(nn.Module):
    """Blocks of an MLP over patches and an MLP over channels; the head reads the mean of the patches.

    Paper: Tolstikhin et al. 2021, section 2. Departs from the paper: the head starts with small random
    weights, not with zeros.
    """

    def __init__(self, config: MLPMixerConfig) -> None:
        super().__init__()
        self.config, self.num_prefix = config, 0
        self.stem = PatchEmbed(config.num_channels, config.width, patch_size=config.patch_size)
        rates = drop_path_rates(config.drop_path, config.depth)
        self.blocks = nn.ModuleList(_build_block(config, rate) for rate in rates)
        self.norm = _norm(config.width)
        self.head = nn.Linear(config.width, config.num_classes)
        self.apply(_initialise)

    def forward(self, images: Images) -> Logits:
        return self.head(self.tokens(images).mean(dim=1))

    def tokens(self, images: Images) -> Tokens:
        return map_to_tokens(self.features(images)[0])

    def features(self, images: Images) -> list[FeatureMap]:
        check_images(images, self.config)
        x, grid = flatten_map(self.stem(images))  # b patches d
        for block in self.blocks:
            x = block(x, grid=grid)
        return [tokens_to_map(self.norm(x), grid)]


_SMALL = MLPMixerConfig(width=512, depth=8, token_hidden_dim=256, channel_hidden_dim=2048)
_BASE = MLPMixerConfig(width=768, depth=12, token_hidden_dim=384, channel_hidden_dim=3072)
_LARGE = MLPMixerConfig(width=1024, depth=24, token_hidden_dim=512, channel_hidden_dim=4096)
_HUGE = MLPMixerConfig(width=1280, depth=32, token_hidden_dim=640, channel_hidden_dim=5120)

VARIANTS: dict[str, ModelConfig] = {  # Tolstikhin et al. 2021, table 1
    "mixer_s32": _SMALL.with_changes({"patch_size": 32}),
    "mixer_s16": _SMALL,
    "mixer_b32": _BASE.with_changes({"patch_size": 32}),
    "mixer_b16": _BASE,
    "mixer_l32": _LARGE.with_changes({"patch_size": 32}),
    "mixer_l16": _LARGE,
    "mixer_h14": _HUGE.with_changes({"patch_size": 14}),
}


def _build_block(config: MLPMixerConfig, drop_path: float) -> nn.Module:
    grid = coarser_grid(config.image_size, config.patch_size)
    shape = MixerShape(config.width, 1, math.prod(grid), grid)
    return Block(
        config.width,
        mixer=TokenMLP(shape, config.token_hidden_dim),
        mlp=MLP(config.width, config.channel_hidden_dim, dropout=config.dropout),
        norm=_norm,
        dropout=config.dropout,
        drop_path=drop_path,
    )


def _initialise(module: nn.Module) -> None:
    """As the published JAX code initialises linear layers; the stem does so itself."""
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=module.in_features**-0.5)  # LeCun
        nn.init.zeros_(module.bias)


_norm = partial(nn.LayerNorm, eps=1e-6)  # published code
