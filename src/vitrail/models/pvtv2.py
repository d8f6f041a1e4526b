"""PVTv2: a Pyramid Vision Transformer with overlapping patches, and convolutions in place of positions.

Paper: Wang et al. 2022. Input: any height and width. Patches at the border reach over the edge, and maps are
zero-padded to whole squares of reduced keys.
"""

from __future__ import annotations

import math
from functools import partial
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from pydantic import Field
from torch import Tensor, nn

from vitrail.models.contract import ModelConfig
from vitrail.models.pvt import PVTConfig
from vitrail.models.skeletons import Pyramid, TokenStage, map_to_tokens, tokens_to_map
from vitrail.nn.attention import Attention
from vitrail.nn.blocks import DropPath
from vitrail.nn.linear import Linear
from vitrail.nn.patches import ChannelLayerNorm, widen_to_stride
from vitrail.nn.reduction import PooledReduction, ReducedAttention, StridedReduction


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

    def build(self) -> Pyramid:  # type: ignore[override]
        model = Pyramid(
            self,
            stem=OverlappingPatches(self.num_channels, self.widths[0], stride=self.patch_size),
            stages=[_build_stage(self, index) for index in range(len(self.widths))],
            final=nn.Identity(),
            head=nn.Linear(self.widths[-1], self.num_classes),
        )
        return model.apply(_initialise)


def _variant(depths: tuple[int, ...], drop_path: float) -> PVTv2Config:
    return PVTv2Config(depths=depths, drop_path=drop_path)


_B0_WIDTHS = (32, 64, 160, 256)
_B2 = _variant((3, 4, 6, 3), 0.1)

VARIANTS: dict[str, ModelConfig] = {  # Wang et al. 2022, table 1; drop paths of the published code
    "pvtv2_b0": _variant((2, 2, 2, 2), 0.1).with_changes({"widths": _B0_WIDTHS}),
    "pvtv2_b1": _variant((2, 2, 2, 2), 0.1),
    "pvtv2_b2": _B2,
    "pvtv2_b2_li": _B2.with_changes({"pooled_keys": 7}),  # section 3.2
    "pvtv2_b3": _variant((3, 4, 18, 3), 0.3),
    "pvtv2_b4": _variant((3, 8, 27, 3), 0.3),
    "pvtv2_b5": _variant((3, 6, 40, 3), 0.3).with_changes({"mlp_ratios": (4.0, 4.0, 4.0, 4.0)}),
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

    def forward(
        self, x: Float[Tensor, "batch in_dim rows_in columns_in"]
    ) -> Float[Tensor, "batch dim rows columns"]:
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
        self, x: Float[Tensor, "batch cells dim"], *, grid: tuple[int, int]
    ) -> Float[Tensor, "batch cells dim"]:
        hidden = self.depthwise(tokens_to_map(self.first_activation(self.expand(x)), grid))
        return self.contract(self.activation(map_to_tokens(hidden)))


class PVTv2Block(nn.Module):
    """``x = x + attention(norm(x))``, then ``x = x + mlp(norm(x))``, where the MLP sees the grid, too.

    Args:
        mlp: is called with the tokens and ``grid``.

    Paper: Wang et al. 2022, figure 2.
    """

    def __init__(self, dim: int, *, mixer: nn.Module, mlp: nn.Module, drop_path: float) -> None:
        super().__init__()
        self.mixer_norm, self.mixer = _norm(dim), mixer
        self.mlp_norm, self.mlp = _norm(dim), mlp
        self.drop_path = DropPath(drop_path)

    def forward(
        self,
        x: Float[Tensor, "batch cells dim"],
        *,
        may_attend: Bool[Tensor, "#batch #heads #queries #keys"] | None = None,
        grid: tuple[int, int] | None = None,
    ) -> Float[Tensor, "batch cells dim"]:
        x = x + self.drop_path(self.mixer(self.mixer_norm(x), may_attend=may_attend, grid=grid))
        return x + self.drop_path(self.mlp(self.mlp_norm(x), grid=grid))


def _build_stage(config: PVTv2Config, index: int) -> TokenStage:
    dim = config.widths[index]
    return TokenStage(
        downsample=OverlappingPatches(config.widths[index - 1], dim, stride=2) if index else nn.Identity(),
        blocks=[_build_block(config, index, drop_path) for drop_path in config.drop_paths(index)],
        norm=_norm(dim),
    )


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
