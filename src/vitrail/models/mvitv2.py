"""MViTv2: four stages of pooling attention with decomposed relative positions.

Paper: Li et al. 2022, on Fan et al. 2021 (MViT). Input: any height and width. Convolutions zero-pad the image
and the grids, and relative positions are interpolated to the grid.
"""

from __future__ import annotations

from functools import partial
from itertools import islice
from typing import ClassVar, Literal, NamedTuple

from torch import nn

from vitrail.models.contract import ModelConfig
from vitrail.models.mvit import STAGE_FACTOR, MViTConfig, OverlappingPatches
from vitrail.models.pyramid import Pyramid
from vitrail.nn.blocks import MLP
from vitrail.nn.convolution import ChannelLayerNorm
from vitrail.nn.feature_maps import coarser_grid
from vitrail.nn.linear import draw_linear_layers
from vitrail.nn.pooling_attention import NORM_EPS, DecomposedRelativePositions, PoolingAttention, PoolingBlock
from vitrail.nn.tokens import Grid


class MViTv2Config(MViTConfig):
    """Settings of an MViTv2: those of the first MViT and one more."""

    family: ClassVar[str] = "mvitv2"
    paper: ClassVar[str] = "Li et al. 2022"
    position_policy: ClassVar[str] = (
        "decomposed relative positions in every layer, interpolated linearly to another size"
    )

    depths: tuple[int, ...] = (2, 3, 16, 3)
    """Number of blocks of each stage."""
    expansion: Literal["attention", "mlp"] = "attention"
    """What doubles the width: attention in a stage's first block, or the MLP of the last block before it."""

    def build(self) -> nn.Module:
        return MViTv2(self)


class MViTv2(Pyramid):
    """Overlapping patches, stages of pooling attention, a norm, and a linear layer on the mean.

    Paper: Li et al. 2022, table 1.
    """

    def __init__(self, config: MViTv2Config) -> None:
        super().__init__()
        self.config = config
        shapes = block_shapes(config)
        step = config.drop_path / max(len(shapes) - 1, 1)
        blocks = iter([_build_block(config, shape, step * index) for index, shape in enumerate(shapes)])
        stages = [nn.Sequential(*islice(blocks, depth)) for depth in config.depths]
        self.stem = OverlappingPatches(config.num_channels, config.width, patch_size=config.patch_size)
        self.stages = nn.ModuleList(stages)
        self.final = ChannelLayerNorm(shapes[-1].out_dim, eps=NORM_EPS)
        self.head = nn.Linear(shapes[-1].out_dim, config.num_classes)
        draw_linear_layers(self)  # Li et al. 2022, published code


_BASE = MViTv2Config(drop_path=0.3)

# Li et al. 2022, table 1; drop path, and where the large one widens its tokens, as in the published settings.
VARIANTS: dict[str, ModelConfig] = {
    "mvitv2_t": _BASE.with_changes({"depths": (1, 2, 5, 2), "drop_path": 0.1}),
    "mvitv2_s": _BASE.with_changes({"depths": (1, 2, 11, 2), "drop_path": 0.1}),
    "mvitv2_b": _BASE,
    "mvitv2_l": _BASE.with_changes(
        {"depths": (2, 6, 36, 4), "width": 144, "num_heads": 2, "expansion": "mlp", "drop_path": 0.5}
    ),
}


class BlockShape(NamedTuple):
    """The settings that differ between blocks."""

    dim: int
    """Token width."""
    hidden_dim: int
    """Token width after attention."""
    out_dim: int
    """Token width after the MLP."""
    num_heads: int
    stride: int
    """Stride of its queries."""
    key_stride: int
    """Stride of its keys."""
    grid: Grid
    """Rows and columns of its tokens at the native size."""


def block_shapes(config: MViTv2Config) -> list[BlockShape]:
    """Return the settings of every block, in order."""
    grid, dim, key_stride = config.grid, config.width, config.key_stride
    shapes = []
    for stage, depth in enumerate(config.depths):
        width = config.width * STAGE_FACTOR**stage
        if stage:
            key_stride = max(key_stride // STAGE_FACTOR, 1)
        for index in range(depth):
            is_last_of_stage = index == depth - 1 and stage < len(config.depths) - 1
            stride = STAGE_FACTOR if stage and index == 0 else 1
            out_dim = width * STAGE_FACTOR if is_last_of_stage and config.expansion == "mlp" else width
            shapes.append(
                BlockShape(
                    dim, width, out_dim, config.num_heads * STAGE_FACTOR**stage, stride, key_stride, grid
                )
            )
            dim, grid = out_dim, coarser_grid(grid, stride)
    return shapes


def _build_block(config: MViTv2Config, shape: BlockShape, drop_path: float) -> PoolingBlock:
    # The queries' grid and the keys' share one table of relative positions, counted on the finer one.
    finer = coarser_grid(shape.grid, min(shape.stride, shape.key_stride))
    positions = DecomposedRelativePositions(finer, shape.hidden_dim // shape.num_heads)
    attention = PoolingAttention(
        shape.dim,
        shape.hidden_dim,
        shape.num_heads,
        positions=positions,
        query_stride=shape.stride,
        key_stride=shape.key_stride,
        pooling=config.pooling,
    )
    return PoolingBlock(
        shape.dim,
        shape.hidden_dim,
        shape.out_dim,
        attention=attention,
        mlp=MLP(shape.hidden_dim, int(shape.hidden_dim * config.mlp_ratio), out_dim=shape.out_dim),
        norm=partial(nn.LayerNorm, eps=NORM_EPS),
        stride=shape.stride,
        drop_path=drop_path,
    )
