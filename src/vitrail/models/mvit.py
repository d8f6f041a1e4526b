"""MViT, the first Multiscale Vision Transformer: stages of pooling attention with a class token.

Paper: Fan et al. 2021; for images as in section 5, without the axis of time. Input: any height and width.
Convolutions zero-pad the image and the grids, and the positions are interpolated to the image's grid.
"""

from __future__ import annotations

from functools import partial
from typing import ClassVar, Literal, Self

import torch
from jaxtyping import Float
from pydantic import Field, model_validator
from torch import Tensor, nn

from vitrail.models.contract import ImageModelConfig, ModelConfig, check_images
from vitrail.nn.blocks import MLP, DropPath, drop_path_stages
from vitrail.nn.feature_maps import coarser_grid, flatten_map, map_to_tokens, tokens_to_map
from vitrail.nn.linear import Linear, draw_linear_layers
from vitrail.nn.pooling_attention import NORM_EPS, PrefixPoolingAttention, pool_skip
from vitrail.nn.positions import LearnedGridPositions
from vitrail.nn.tokens import FeatureMap, Grid, Images, Logits, Tokens

STAGE_FACTOR = 2  # Fan et al. 2021, table 2: a stage halves rows and columns, and doubles width and heads

Placed = tuple[Tokens, Grid]
"""Tokens, the class token first, and the grid of the others."""
Coarser = tuple[Float[Tensor, "batch fewer out_dim"], Grid]


class MViTConfig(ImageModelConfig):
    """Settings of an MViT; each stage after the first is half as fine and twice as wide."""

    family: ClassVar[str] = "mvit"
    paper: ClassVar[str] = "Fan et al. 2021"
    position_policy: ClassVar[str] = "learned positions are interpolated (bilinear) to the image's grid"
    size_policy: ClassVar[str] = "convolutions complete the image and the grids of tokens with zeros"

    patch_size: int = Field(default=4, ge=1)
    """Stride of the first stage in pixels; patches overlap and are ``2 * patch_size - 1`` wide."""
    depths: tuple[int, ...] = (1, 2, 11, 2)
    """Number of blocks of each stage."""
    width: int = Field(default=96, ge=1)
    """Width of a token in the first stage; the last block of a stage doubles it."""
    num_heads: int = Field(default=1, ge=1)
    """Attention heads in the first stage; divides ``width``."""
    mlp_ratio: float = Field(default=4.0, gt=0)
    """Hidden width of an MLP relative to its tokens."""
    key_stride: int = Field(default=4, ge=1)
    """Stride of the keys in the first stage; halved, down to 1, in each further stage."""
    pooling: Literal["convolution", "max"] = "convolution"
    """What pools queries, keys and values: a depthwise 3x3 convolution with a norm, or 3x3 maxima."""
    drop_path: float = Field(default=0.0, ge=0, lt=1)
    """Stochastic-depth rate of the last block, linear from 0."""

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if self.width % self.num_heads:
            raise ValueError(f"num_heads {self.num_heads} does not divide width {self.width}")
        if not self.depths or min(self.depths) < 1:
            raise ValueError(f"depths {self.depths} need at least one stage, and one block in each")
        if min(self.image_size) < self.patch_size:
            raise ValueError(f"image_size {self.image_size} holds no patch of {self.patch_size} pixels")
        return self

    @property
    def grid(self) -> Grid:
        """Rows and columns of the first stage's tokens at ``image_size``."""
        return coarser_grid(self.image_size, self.patch_size)

    def build(self) -> nn.Module:
        return MViT(self)


class MViT(nn.Module):
    """Overlapping patches, a class token, stages of pooling attention, a norm, and a linear layer.

    Paper: Fan et al. 2021, sections 3.2 and 5, table 3 (b).
    Departs from the paper: biases start with zero, those of its published code with 0.02.
    """

    def __init__(self, config: MViTConfig) -> None:
        super().__init__()
        self.config, self.num_prefix = config, 1
        self.stem = OverlappingPatches(config.num_channels, config.width, patch_size=config.patch_size)
        self.prefix = nn.Parameter(torch.zeros(1, config.width))  # class token
        nn.init.trunc_normal_(self.prefix, std=0.02)  # Fan et al. 2021, published code
        self.positions = LearnedGridPositions(
            config.grid, config.width, num_prefix=1, interpolation="bilinear", antialias=False
        )
        self.stages = nn.ModuleList(_build_stage(config, stage) for stage in range(len(config.depths)))
        width = config.width * STAGE_FACTOR ** (len(config.depths) - 1)
        self.norm = nn.LayerNorm(width, eps=NORM_EPS)
        self.head = nn.Linear(width, config.num_classes)
        draw_linear_layers(self)

    def forward(self, images: Images) -> Logits:
        return self.head(self.tokens(images)[:, 0])

    def tokens(self, images: Images) -> Tokens:
        """Return the last stage's normalised tokens: the class token, then the patches row by row."""
        return self.norm(self._run_stages(images)[-1][0])

    def features(self, images: Images) -> list[FeatureMap]:
        return [tokens_to_map(x[:, 1:], grid) for x, grid in self._run_stages(images)]

    def _run_stages(self, images: Images) -> list[Placed]:
        check_images(images, self.config)
        x, grid = flatten_map(self.stem(images))  # b patches d
        x = torch.cat((self.prefix.to(x.dtype).expand(x.shape[0], -1, -1), x), dim=1)
        placed: Placed = (x + self.positions(grid).to(x.dtype), grid)
        outputs = []
        for stage in self.stages:
            placed = stage(placed)
            outputs.append(placed)
        return outputs


class OverlappingPatches(nn.Module):
    """Project overlapping patches with one convolution.

    Args:
        patch_size: stride; patches are ``2 * patch_size - 1`` wide.

    Paper: Fan et al. 2021, section 3.2, table 2 ("data layer").
    """

    def __init__(self, in_channels: int, dim: int, *, patch_size: int) -> None:
        super().__init__()
        self.projection = nn.Conv2d(
            in_channels, dim, 2 * patch_size - 1, stride=patch_size, padding=patch_size - 1
        )

    def forward(self, images: Images) -> FeatureMap:
        """Return one position per patch, rounded up; the image is zero-padded."""
        return self.projection(images.contiguous(memory_format=torch.channels_last))


class MViTBlock(nn.Module):
    """``x = pool(x) + attention(norm(x))``, then ``x = skip(norm(x)) + mlp(norm(x))``.

    The skip is a linear layer where the MLP widens the tokens, and else ``x`` itself.

    Args:
        stride: of the attention's queries.

    Paper: Fan et al. 2021, section 3.2 and appendix D.1.
    """

    def __init__(
        self,
        dim: int,
        out_dim: int,
        num_heads: int,
        *,
        hidden_dim: int,
        stride: int,
        key_stride: int,
        pooling: str,
        drop_path: float = 0.0,
    ) -> None:
        super().__init__()
        norm, self.stride = partial(nn.LayerNorm, eps=NORM_EPS), stride
        attention = PrefixPoolingAttention(
            dim, num_heads, query_stride=stride, key_stride=key_stride, pooling=pooling
        )
        self.mixer_norm, self.mixer = norm(dim), attention
        self.mlp_norm, self.mlp = norm(dim), MLP(dim, hidden_dim, out_dim=out_dim)
        self.mlp_skip = Linear(dim, out_dim) if dim != out_dim else None
        self.drop_path = DropPath(drop_path)

    def forward(self, placed: Placed) -> Coarser:
        x, grid = placed
        mixed, new_grid = self.mixer(self.mixer_norm(x), grid=grid)
        x = self._pool(x, grid) + self.drop_path(mixed)
        normed = self.mlp_norm(x)
        skip = x if self.mlp_skip is None else self.mlp_skip(normed)
        return skip + self.drop_path(self.mlp(normed)), new_grid

    def _pool(self, x: Tokens, grid: Grid) -> Float[Tensor, "batch fewer dim"]:
        """Bring the patches of the skip to the grid of the queries."""
        if self.stride == 1:
            return x
        patches = pool_skip(tokens_to_map(x[:, 1:], grid), self.stride)
        return torch.cat((x[:, :1], map_to_tokens(patches)), dim=1)


# Fan et al. 2021, table 17, appendix D.5 (drop path), and table 3 (b) with repeated blocks (depths).
_DEEPER = MViTConfig(depths=(2, 3, 16, 3), drop_path=0.3)
VARIANTS: dict[str, ModelConfig] = {
    "mvit_b16": MViTConfig(drop_path=0.1),
    "mvit_b24": _DEEPER,
    "mvit_b24_wide": _DEEPER.with_changes({"width": 112, "image_size": (320, 320)}),
}


def _build_stage(config: MViTConfig, stage: int) -> nn.Sequential:
    width, depth = config.width * STAGE_FACTOR**stage, config.depths[stage]
    is_last = stage == len(config.depths) - 1
    return nn.Sequential(
        *(
            MViTBlock(
                width,
                width if is_last or index < depth - 1 else width * STAGE_FACTOR,
                config.num_heads * STAGE_FACTOR**stage,
                hidden_dim=int(width * config.mlp_ratio),
                stride=STAGE_FACTOR if stage and index == 0 else 1,
                key_stride=max(config.key_stride // STAGE_FACTOR**stage, 1),
                pooling=config.pooling,
                drop_path=rate,
            )
            for index, rate in enumerate(drop_path_stages(config.drop_path, config.depths)[stage])
        )
    )
