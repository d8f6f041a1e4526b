"""Swin V2: cosine window attention, log-spaced continuous position bias, norms at the end of branches.

Paper: Liu et al. 2022. Input: any height and width, as in Swin.
"""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar, Self

from pydantic import Field, model_validator
from torch import nn

from vitrail.core.config import ImageSize
from vitrail.models.contract import ModelConfig
from vitrail.models.swin import EPSILON, BlockShape, Swin, SwinConfig, build_stages, merge_squares
from vitrail.nn.blocks import MLP, Block
from vitrail.nn.linear import Linear
from vitrail.nn.relative import ContinuousRelativeBias
from vitrail.nn.tokens import FeatureMap, InputMap
from vitrail.nn.windows import CosineWindowAttention


class SwinV2Config(SwinConfig):
    """Settings of a Swin Transformer V2."""

    family: ClassVar[str] = "swinv2"
    paper: ClassVar[str] = "Liu et al. 2022"
    position_policy: ClassVar[str] = (
        "a bias for each relative position in a window, computed from its logarithm; the same at every "
        "image size"
    )

    image_size: ImageSize = (256, 256)
    """Native height and width in pixels; other sizes work, too."""
    window_size: int = Field(default=8, ge=1)
    """Rows and columns of a window, or of the stage's feature map at ``image_size`` if that is smaller."""
    trained_windows: tuple[int, ...] = ()
    """Rows and columns of each stage's windows in pretraining, by which the biases' distances are scaled;
    empty means those of this model."""

    @model_validator(mode="after")
    def _check_windows(self) -> Self:
        if self.trained_windows and len(self.trained_windows) != len(self.depths):
            raise ValueError("trained_windows needs one value for each stage, or none at all")
        if any(window < 1 for window in self.trained_windows):
            raise ValueError(f"trained_windows {self.trained_windows} are greater than zero")
        return self

    def build(self) -> nn.Module:
        return SwinV2(self)


class SwinV2(Swin):
    """A Swin Transformer with cosine attention and norms at the end of its branches.

    Paper: Liu et al. 2022, section 3 and figure 1.
    """

    def build_stages(self, config: SwinConfig) -> nn.ModuleList:
        return build_stages(config, block=_build_block, merging=PostNormPatchMerging)


class PostNormPatchMerging(nn.Module):
    """Concatenate squares of 2x2, project, normalise.

    Paper: Liu et al. 2022 (Swin V2), published code.
    """

    def __init__(self, dim: int, out_dim: int) -> None:
        super().__init__()
        self.reduction = Linear(4 * dim, out_dim, bias=False)
        self.norm = nn.LayerNorm(out_dim)

    def forward(self, x: InputMap) -> FeatureMap:
        """Return the feature map of half the rows and columns, rounded up, in channels-last memory."""
        return self.norm(self.reduction(merge_squares(x.movedim(1, -1)))).movedim(-1, 1)


def _variants(name: str, base: SwinV2Config, changes: dict[str, dict[str, Any]]) -> dict[str, ModelConfig]:
    return {name + suffix: base.with_changes(change) for suffix, change in changes.items()}


_TINY = SwinV2Config(drop_path=0.2)
_SMALL = SwinV2Config(depths=(2, 2, 18, 2), drop_path=0.3)
_BASE = SwinV2Config(width=128, depths=(2, 2, 18, 2), num_heads=(4, 8, 16, 32), drop_path=0.5)
_LARGE = SwinV2Config(width=192, depths=(2, 2, 18, 2), num_heads=(6, 12, 24, 48), drop_path=0.2)

# Windows of 8 are the default; models with windows of 16 at the same size, and those pretrained with windows
# of 12 at 192 pixels and fine-tuned at other sizes, are named by their window.
_WINDOW_8: dict[str, dict[str, Any]] = {"": {}, "_w16": {"window_size": 16}}
_WINDOW_12: dict[str, dict[str, Any]] = {
    "_w12_192": {"image_size": (192, 192), "window_size": 12},
    "_w12to16": {"window_size": 16, "trained_windows": (12, 12, 12, 6)},
    "_w12to24_384": {"image_size": (384, 384), "window_size": 24, "trained_windows": (12, 12, 12, 6)},
}

VARIANTS: dict[str, ModelConfig] = {  # Liu et al. 2022, section 3.5 and table 2; drop paths of published code
    **_variants("swinv2_t", _TINY, _WINDOW_8),
    **_variants("swinv2_s", _SMALL, _WINDOW_8),
    **_variants("swinv2_b", _BASE, _WINDOW_8 | _WINDOW_12),
    **_variants("swinv2_l", _LARGE, _WINDOW_12),
}


def _build_block(config: SwinConfig, shape: BlockShape) -> nn.Module:
    assert isinstance(config, SwinV2Config)
    trained = shape.windows.size
    if config.trained_windows:
        trained = (config.trained_windows[shape.stage], config.trained_windows[shape.stage])
    return Block(
        shape.dim,
        mixer=CosineWindowAttention(
            shape.dim,
            shape.num_heads,
            windows=shape.windows,
            shifted=shape.shifted,
            bias=ContinuousRelativeBias(trained, shape.num_heads),
            qkv_bias=config.qkv_bias,
        ),
        mlp=MLP(shape.dim, int(shape.dim * config.mlp_ratio)),
        norm=partial(nn.LayerNorm, eps=EPSILON),
        norm_place="branch_post",
        drop_path=shape.drop_path,
    )
