"""Swin: a pyramid with attention inside windows that are shifted in every second block.

Paper: Liu et al. 2021. Input: any height and width. Maps are zero-padded to whole windows, patches and merged
squares; no token of the image attends to the padding.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import ClassVar, NamedTuple, Self

import torch.nn.functional as F
from jaxtyping import Float
from pydantic import Field, model_validator
from torch import Tensor, nn

from vitrail.models.contract import ImageModelConfig, ModelConfig
from vitrail.models.pyramid import Pyramid
from vitrail.nn.blocks import MLP, Block, drop_path_stages
from vitrail.nn.convolution import ChannelLayerNorm
from vitrail.nn.feature_maps import coarser_grid
from vitrail.nn.linear import Linear, draw_linear_layers
from vitrail.nn.patches import PatchEmbed
from vitrail.nn.relative import GridRelativeBias
from vitrail.nn.tokens import FeatureMap, InputMap
from vitrail.nn.windows import WindowAttention, Windows, WindowStage, fit_windows

EPSILON = 1e-5  # every norm, published code


class SwinConfig(ImageModelConfig):
    """Settings of a Swin Transformer."""

    family: ClassVar[str] = "swin"
    paper: ClassVar[str] = "Liu et al. 2021"
    position_policy: ClassVar[str] = (
        "a learned bias for each relative position in a window; the same at every image size"
    )
    size_policy: ClassVar[str] = (
        "completed with zeros, below and to the right, to whole patches, windows and squares of merged "
        "patches; what completes a window is not attended to; a window is no longer than its map, and is not "
        "shifted along an axis that it covers"
    )

    patch_size: int = Field(default=4, ge=1)
    """Patch size of the first stage in pixels; each further stage halves rows and columns."""
    width: int = Field(default=96, ge=1)
    """Token width in the first stage; each further stage doubles it."""
    depths: tuple[int, ...] = (2, 2, 6, 2)
    """Number of blocks in each stage."""
    num_heads: tuple[int, ...] = (3, 6, 12, 24)
    """Attention heads in each stage; each divides the stage's width."""
    window_size: int = Field(default=7, ge=1)
    """Rows and columns of a window, or of the stage's feature map at ``image_size`` if that is smaller."""
    mlp_ratio: float = Field(default=4.0, gt=0)
    """Hidden width of an MLP relative to the stage's width."""
    qkv_bias: bool = True
    """Whether queries, keys and values have a bias; keys have none in Swin V2."""
    drop_path: float = Field(default=0.0, ge=0, lt=1)
    """Stochastic-depth rate of the last block, linear from 0."""

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if not self.depths or len(self.num_heads) != len(self.depths):
            raise ValueError("depths and num_heads need one value for each stage")
        if min(*self.depths, *self.num_heads) < 1:
            raise ValueError("depths and num_heads are greater than zero")
        for stage, heads in enumerate(self.num_heads):
            if self.width * 2**stage % heads:
                raise ValueError(f"num_heads {heads} does not divide width {self.width * 2**stage}")
        return self

    @property
    def channels(self) -> tuple[int, ...]:
        return tuple(self.width * 2**stage for stage in range(len(self.depths)))

    def build(self) -> nn.Module:
        return Swin(self)


class Swin(Pyramid):
    """Patches, stages of window attention (W-MSA and SW-MSA in turn), a norm, and a linear layer on the mean.

    Paper: Liu et al. 2021, section 3.1 and figure 3.
    """

    def __init__(self, config: SwinConfig) -> None:
        super().__init__()
        self.config = config
        stages = self.build_stages(config)  # drawn before the stem
        self.stem = nn.Sequential(
            PatchEmbed(config.num_channels, config.width, patch_size=config.patch_size),
            ChannelLayerNorm(config.width, eps=EPSILON),
        )
        self.stages = stages
        self.final = ChannelLayerNorm(config.channels[-1], eps=EPSILON)
        self.head = nn.Linear(config.channels[-1], config.num_classes)
        draw_linear_layers(self)  # published code

    def build_stages(self, config: SwinConfig) -> nn.ModuleList:
        return build_stages(config, block=_build_block, merging=PatchMerging)


def merge_squares(
    x: Float[Tensor, "batch rows columns dim"],
) -> Float[Tensor, "batch half_rows half_columns four_dim"]:
    """Concatenate each square of 2x2 positions, column by column; odd maps are zero-padded.

    Example:
    >>> import torch
    >>> merge_squares(torch.tensor([[1.0, 2.0], [3.0, 4.0]])[None, :, :, None]).flatten().tolist()
        [1.0, 3.0, 2.0, 4.0]
    """
    below, right = x.shape[1] % 2, x.shape[2] % 2
    if below or right:
        x = F.pad(x, (0, 0, 0, right, 0, below))
    squares = x.unflatten(2, (-1, 2)).unflatten(1, (-1, 2))  # b rows y columns x d
    return squares.permute(0, 1, 3, 4, 2, 5).flatten(3)  # b rows columns four_dim


class PatchMerging(nn.Module):
    """Concatenate squares of 2x2, normalise, project.

    Paper: Liu et al. 2021 (Swin), section 3.1, "patch merging"; the norm is in the published code only.
    """

    def __init__(self, dim: int, out_dim: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4 * dim)
        self.reduction = Linear(4 * dim, out_dim, bias=False)

    def forward(self, x: InputMap) -> FeatureMap:
        """Return the feature map of half the rows and columns, rounded up, in channels-last memory."""
        return self.reduction(self.norm(merge_squares(x.movedim(1, -1)))).movedim(-1, 1)


class BlockShape(NamedTuple):
    """The settings that differ between blocks."""

    stage: int
    """Index of its stage."""
    dim: int
    """Token width."""
    num_heads: int
    windows: Windows
    """Windows at the native size."""
    shifted: bool
    drop_path: float
    """Stochastic-depth rate."""


def _variant(width: int, depths: tuple[int, ...], num_heads: tuple[int, ...], drop_path: float) -> SwinConfig:
    return SwinConfig(width=width, depths=depths, num_heads=num_heads, drop_path=drop_path)


_BASE = _variant(128, (2, 2, 18, 2), (4, 8, 16, 32), 0.5)
_LARGE = _variant(192, (2, 2, 18, 2), (6, 12, 24, 48), 0.2)
_AT_384 = {"image_size": (384, 384), "window_size": 12}  # Liu et al. 2021, table 1b

VARIANTS: dict[str, ModelConfig] = {  # Liu et al. 2021, section 3.3; drop paths of appendix A2.1
    "swin_t": _variant(96, (2, 2, 6, 2), (3, 6, 12, 24), 0.2),
    "swin_s": _variant(96, (2, 2, 18, 2), (3, 6, 12, 24), 0.3),
    "swin_b": _BASE,
    "swin_l": _LARGE,
    "swin_b_384": _BASE.with_changes(_AT_384),
    "swin_l_384": _LARGE.with_changes(_AT_384),
}


def build_stages(
    config: SwinConfig,
    *,
    block: Callable[[SwinConfig, BlockShape], nn.Module],
    merging: Callable[[int, int], nn.Module],
) -> nn.ModuleList:
    """Return the windowed stages.

    Args:
        block: from the settings and a block's shape to the block.
        merging: from the widths before and after to a layer that halves the resolution.
    """
    grid = coarser_grid(config.image_size, config.patch_size)
    rates, stages = drop_path_stages(config.drop_path, config.depths), nn.ModuleList()
    for stage, (dim, num_heads) in enumerate(zip(config.channels, config.num_heads, strict=True)):
        grid = coarser_grid(grid, 2) if stage else grid
        window = (config.window_size, config.window_size)
        plain, shifted = (fit_windows(grid, window, shifted=each) for each in (False, True))
        blocks = [
            block(config, BlockShape(stage, dim, num_heads, shifted if i % 2 else plain, i % 2 == 1, rate))
            for i, rate in enumerate(rates[stage])
        ]
        downsample = merging(dim // 2, dim) if stage else nn.Identity()
        stages.append(WindowStage(downsample=downsample, blocks=blocks, windows=plain))
    return stages


def _build_block(config: SwinConfig, shape: BlockShape) -> nn.Module:
    return Block(
        shape.dim,
        mixer=WindowAttention(
            shape.dim,
            shape.num_heads,
            windows=shape.windows,
            shifted=shape.shifted,
            bias=GridRelativeBias(shape.windows.size, shape.num_heads),
            qkv_bias=config.qkv_bias,
        ),
        mlp=MLP(shape.dim, int(shape.dim * config.mlp_ratio)),
        norm=partial(nn.LayerNorm, eps=EPSILON),
        drop_path=shape.drop_path,
    )
