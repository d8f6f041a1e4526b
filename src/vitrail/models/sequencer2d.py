"""Sequencer2D: a pyramid that mixes tokens by LSTMs along the columns and the rows.

Paper: Tatsunami and Taki 2022. Input: any height and width; the image is zero-padded to whole patches, and
the feature map to whole squares where it is merged.
"""

from __future__ import annotations

from functools import partial
from typing import ClassVar, Self

from pydantic import Field, model_validator
from torch import nn

from vitrail.models.contract import ImageModelConfig, ModelConfig
from vitrail.models.pyramid import Pyramid
from vitrail.nn.blocks import MLP, Block, drop_path_stages
from vitrail.nn.convolution import ChannelLayerNorm
from vitrail.nn.feature_maps import flatten_map, tokens_to_map
from vitrail.nn.mixers.lstm import GridLSTM
from vitrail.nn.patches import PatchEmbed
from vitrail.nn.tokens import FeatureMap, InputMap


class Sequencer2DConfig(ImageModelConfig):
    """Settings of a Sequencer2D; tuples hold one value per stage."""

    family: ClassVar[str] = "sequencer2d"
    paper: ClassVar[str] = "Tatsunami and Taki 2022"
    position_policy: ClassVar[str] = (
        "none; the LSTMs read the patches of a column or a row in order, at any size"
    )
    size_policy: ClassVar[str] = (
        "completed with zeros, below and to the right, to whole patches, and between stages to whole squares "
        "of merged patches"
    )

    patch_sizes: tuple[int, ...] = (7, 2, 1, 1)
    """Side of a patch, in pixels and, in later stages, positions of the previous stage."""
    widths: tuple[int, ...] = (192, 384, 384, 384)
    """Token width."""
    hidden_dims: tuple[int, ...] = (48, 96, 96, 96)
    """State width of each LSTM."""
    depths: tuple[int, ...] = (4, 3, 8, 3)
    """Number of blocks."""
    mlp_ratio: float = Field(default=3.0, gt=0)
    """Hidden width of an MLP relative to its tokens."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout probability in an MLP and at the end of each branch."""
    drop_path: float = Field(default=0.0, ge=0, lt=1)
    """Stochastic-depth rate of the last block, linear from 0."""

    @model_validator(mode="after")
    def _check_stages(self) -> Self:
        lengths = {len(self.patch_sizes), len(self.widths), len(self.hidden_dims), len(self.depths)}
        if len(lengths) > 1 or not self.widths:
            raise ValueError("patch_sizes, widths, hidden_dims and depths need one value for each stage")
        if min(*self.patch_sizes, *self.widths, *self.hidden_dims, *self.depths) < 1:
            raise ValueError("patch_sizes, widths, hidden_dims and depths are at least 1")
        return self

    @property
    def min_size(self) -> int:
        return self.patch_sizes[0]

    def build(self) -> Sequencer2D:
        return Sequencer2D(self)


class Sequencer2D(Pyramid):
    """A pyramid whose tokens are mixed by LSTMs along columns and rows.

    Paper: Tatsunami and Taki 2022, figure 2.
    Departs from the paper: the head starts with small random weights, not with zeros.
    """

    def __init__(self, config: Sequencer2DConfig) -> None:
        super().__init__()
        self.config = config
        self.stem = PatchEmbed(config.num_channels, config.widths[0], patch_size=config.patch_sizes[0])
        self.stages = nn.ModuleList(SequencerStage(config, stage) for stage in range(len(config.widths)))
        self.final = ChannelLayerNorm(config.widths[-1])
        self.head = nn.Linear(config.widths[-1], config.num_classes)
        self.apply(_initialise)


class SequencerStage(nn.Module):
    """Embed patches of the previous stage's feature map, then blocks; the stem embeds those of the first."""

    def __init__(self, config: Sequencer2DConfig, stage: int) -> None:
        super().__init__()
        before, dim = config.widths[stage - 1], config.widths[stage]
        self.downsample = (
            PatchEmbed(before, dim, patch_size=config.patch_sizes[stage]) if stage else nn.Identity()
        )
        rates = drop_path_stages(config.drop_path, config.depths)[stage]
        self.blocks = nn.ModuleList(_build_block(config, stage, rate) for rate in rates)

    def forward(self, x: InputMap) -> FeatureMap:
        x, grid = flatten_map(self.downsample(x))  # b patches d
        for block in self.blocks:
            x = block(x, grid=grid)
        return tokens_to_map(x, grid)


VARIANTS: dict[str, ModelConfig] = {  # Tatsunami and Taki 2022, section 4; stochastic depth of the appendix
    "sequencer2d_s": Sequencer2DConfig(depths=(4, 3, 8, 3), drop_path=0.1),
    "sequencer2d_m": Sequencer2DConfig(depths=(4, 3, 14, 3), drop_path=0.2),
    "sequencer2d_l": Sequencer2DConfig(depths=(8, 8, 16, 4), drop_path=0.4),
}


def _build_block(config: Sequencer2DConfig, stage: int, drop_path: float) -> nn.Module:
    dim = config.widths[stage]
    return Block(
        dim,
        mixer=GridLSTM(dim, config.hidden_dims[stage]),
        mlp=MLP(dim, int(dim * config.mlp_ratio), dropout=config.dropout),
        norm=_norm,
        dropout=config.dropout,
        drop_path=drop_path,
    )


def _initialise(module: nn.Module) -> None:
    """As the published code initialises linear layers; patches and LSTMs do so themselves."""
    if isinstance(module, nn.Linear):
        nn.init.xavier_uniform_(module.weight)
        nn.init.zeros_(module.bias)


_norm = partial(nn.LayerNorm, eps=1e-6)  # published code
