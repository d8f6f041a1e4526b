"""PVTv2: a Pyramid Vision Transformer with overlapping patches, and convolutions in place of positions.

Paper: Wang et al. 2022. Input: any height and width. Patches at the border reach over the edge, and maps are
zero-padded to whole squares of reduced keys.
"""

from __future__ import annotations

import math
from functools import partial
from typing import ClassVar

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn

from vitrail.models.contract import ModelConfig
from vitrail.models.pvt import PVTConfig
from vitrail.models.pyramid import Pyramid
from vitrail.nn.attention import Attention
from vitrail.nn.blocks import DropPath
from vitrail.nn.convolution import ChannelLayerNorm, widen_to_stride
from vitrail.nn.feature_maps import flatten_map, map_to_tokens, tokens_to_map
from vitrail.nn.linear import Linear
from vitrail.nn.reduction import PooledReduction, ReducedAttention, StridedReduction
from vitrail.nn.tokens import FeatureMap, Grid, InputMap, Mask, Tokens


class PVTv2Config(PVTConfig):
    """Settings of a PVTv2: those of the first PVT and one more."""

    family: ClassVar[str] = "pvtv2"
    paper: ClassVar[str] = "Wang et al. 2022"
    position_policy: ClassVar[str] = (
        "none; the zeros around the 3x3 convolutions tell where the border is, at any size"
    )
    size_policy: ClassVar[str] = (
        "rows and columns are divided and rounded up in each stage; completed with zeros, below and to "
        "the right, to whole squares of reduced keys in each layer; pooled keys need nothing"
    )

    pooled_keys: int | None = Field(default=None, ge=1)
    """Rows and columns that the keys of every stage are pooled to, in place of ``reductions``; 7 in the
    paper's linear variant."""

    def build(self) -> nn.Module:
        return PVTv2(self)


class PVTv2(Pyramid):
    """Stages of overlapping patches and blocks, each with a norm, and a linear layer on the mean.

    Paper: Wang et al. 2022, section 3 and table 1.
    """

    def __init__(self, config: PVTv2Config) -> None:
        super().__init__()
        self.config = config
        self.stem = OverlappingPatches(config.num_channels, config.widths[0], stride=config.patch_size)
        self.stages = nn.ModuleList(PVTv2Stage(config, stage) for stage in range(len(config.widths)))
        self.final = nn.Identity()  # a stage ends with its norm
        self.head = nn.Linear(config.widths[-1], config.num_classes)
        self.apply(_initialise)


class PVTv2Stage(nn.Module):
    """Embed patches of the previous stage's feature map, then blocks and a norm; the first has no patches."""

    def __init__(self, config: PVTv2Config, stage: int) -> None:
        super().__init__()
        before, dim = config.widths[stage - 1], config.widths[stage]
        self.downsample = OverlappingPatches(before, dim, stride=2) if stage else nn.Identity()
        self.blocks = nn.ModuleList(_build_block(config, stage, rate) for rate in config.drop_paths(stage))
        self.norm = _norm(dim)

    def forward(self, x: InputMap) -> FeatureMap:
        x, grid = flatten_map(self.downsample(x))  # b patches d
        for block in self.blocks:
            x = block(x, grid=grid)
        return tokens_to_map(self.norm(x), grid)


_B1 = PVTv2Config(depths=(2, 2, 2, 2), drop_path=0.1)
_B2 = PVTv2Config(depths=(3, 4, 6, 3), drop_path=0.1)

VARIANTS: dict[str, ModelConfig] = {  # Wang et al. 2022, table 1; drop paths of the published code
    "pvtv2_b0": _B1.with_changes({"widths": (32, 64, 160, 256)}),
    "pvtv2_b1": _B1,
    "pvtv2_b2": _B2,
    "pvtv2_b2_li": _B2.with_changes({"pooled_keys": 7}),  # section 3.2
    "pvtv2_b3": PVTv2Config(depths=(3, 4, 18, 3), drop_path=0.3),
    "pvtv2_b4": PVTv2Config(depths=(3, 8, 27, 3), drop_path=0.3),
    "pvtv2_b5": PVTv2Config(depths=(3, 6, 40, 3), drop_path=0.3, mlp_ratios=(4.0, 4.0, 4.0, 4.0)),
}


class OverlappingPatches(nn.Module):
    """Embed overlapping patches, and normalise them.

    Args:
        stride: between neighbouring patches, which are ``2 * stride - 1`` wide.

    Paper: Wang et al. 2022, section 3.3.
    """

    def __init__(self, in_dim: int, dim: int, *, stride: int) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(in_dim, dim, 2 * stride - 1, stride=stride, padding=stride - 1)
        self.norm = ChannelLayerNorm(dim, eps=1e-5)  # the published code's epsilon

    def forward(self, x: InputMap) -> FeatureMap:
        """Return a feature map of ``rows_in / stride`` rows, rounded up, in channels-last memory."""
        x = widen_to_stride(x, self.convolution.stride[1])
        return self.norm(self.convolution(x.contiguous(memory_format=torch.channels_last)))


class ConvolutionalMLP(nn.Module):
    """An MLP with a depthwise 3x3 convolution of its hidden feature map.

    Args:
        first_activation: between the first linear layer and the convolution.

    Paper: Wang et al. 2022, section 3.4, figure 2.
    """

    def __init__(self, dim: int, hidden_dim: int, *, first_activation: nn.Module) -> None:
        super().__init__()
        self.expand = Linear(dim, hidden_dim)
        self.first_activation = first_activation
        self.depthwise = nn.Conv2d(hidden_dim, hidden_dim, 3, padding=1, groups=hidden_dim)
        self.activation = nn.GELU()
        self.contract = Linear(hidden_dim, dim)

    def forward(
        self, x: Float[Tensor, "batch patches dim"], *, grid: Grid
    ) -> Float[Tensor, "batch patches dim"]:
        hidden = self.depthwise(tokens_to_map(self.first_activation(self.expand(x)), grid))
        return self.contract(self.activation(map_to_tokens(hidden)))


class PVTv2Block(nn.Module):
    """``x = x + attention(norm(x))``, then ``x = x + mlp(norm(x))``, where the MLP sees the grid, too.

    Paper: Wang et al. 2022, figure 2.
    """

    def __init__(self, dim: int, *, mixer: nn.Module, mlp: nn.Module, drop_path: float) -> None:
        super().__init__()
        self.mixer_norm, self.mixer = _norm(dim), mixer
        self.mlp_norm, self.mlp = _norm(dim), mlp
        self.drop_path = DropPath(drop_path)

    def forward(self, x: Tokens, *, may_attend: Mask | None = None, grid: Grid | None = None) -> Tokens:
        x = x + self.drop_path(self.mixer(self.mixer_norm(x), may_attend=may_attend, grid=grid))
        return x + self.drop_path(self.mlp(self.mlp_norm(x), grid=grid))


def _build_block(config: PVTv2Config, stage: int, drop_path: float) -> PVTv2Block:
    dim, heads, ratio = config.widths[stage], config.num_heads[stage], config.reductions[stage]
    pooled = config.pooled_keys
    mixer: nn.Module
    if pooled is not None:
        mixer = ReducedAttention(dim, heads, reduction=PooledReduction(dim, size=pooled))
    elif ratio > 1:
        mixer = ReducedAttention(dim, heads, reduction=StridedReduction(dim, dim, ratio=ratio))
    else:
        mixer = Attention(dim, heads)
    mlp = ConvolutionalMLP(
        dim,
        int(dim * config.mlp_ratios[stage]),
        first_activation=nn.Identity() if pooled is None else nn.ReLU(),  # of the linear variant only
    )
    return PVTv2Block(dim, mixer=mixer, mlp=mlp, drop_path=drop_path)


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=0.02)
        nn.init.zeros_(module.bias)
    elif isinstance(module, nn.Conv2d):
        fan_out = math.prod(module.kernel_size) * module.out_channels // module.groups
        nn.init.normal_(module.weight, std=math.sqrt(2 / fan_out))
        assert module.bias is not None
        nn.init.zeros_(module.bias)


_norm = partial(nn.LayerNorm, eps=1e-6)  # published code
