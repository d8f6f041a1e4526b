"""Key tables of torchvision's models, and its files of weights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch

from vitrail.models.efficientnet import STAGES, EfficientNetConfig
from vitrail.models.swin import SwinConfig
from vitrail.models.swinv2 import SwinV2Config
from vitrail.models.vit import ViTConfig
from vitrail.models.weights.layouts.timm import merging, resnet, scaled_cosine
from vitrail.models.weights.table import (
    Entry,
    Source,
    Table,
    batched,
    blocks,
    layer,
    layers,
    normed,
    pointwise,
    rows,
    same,
    torch_attention,
)

NORMS_AND_MLP = {"mixer_norm": "norm1", "mlp_norm": "norm2", "mlp.expand": "mlp.0", "mlp.contract": "mlp.3"}


def _vit(config: ViTConfig) -> Iterator[Entry]:
    yield from layers("", "", {"stem": "conv_proj", "norm": "encoder.ln", "head": "heads.head"})
    yield rows("prefix", ["class_token"], to_theirs=(1, 1, config.width))
    yield batched("positions.table", "encoder.pos_embedding")
    for ours, theirs in blocks(config.depth, "blocks.{}", "encoder.layers.encoder_layer_{}"):
        yield from layers(ours, theirs, {**NORMS_AND_MLP, "mixer_norm": "ln_1", "mlp_norm": "ln_2"})
        yield from torch_attention(f"{ours}.mixer", f"{theirs}.self_attention")


def _swin(config: SwinConfig) -> Iterator[Entry]:
    yield from _swin_frame(config)
    for ours, theirs in _swin_blocks(config):
        yield from layer(f"{ours}.mixer.qkv", f"{theirs}.attn.qkv", bias=config.qkv_bias)
        yield same(f"{ours}.mixer.relative_bias.table", f"{theirs}.attn.relative_position_bias_table")


def _swin_frame(config: SwinConfig) -> Iterator[Entry]:
    """Map the tensors that Swin and Swin V2 share: all but those of the attention weights."""
    yield from layers("", "", {"stem.0": "features.0.0", "stem.1.norm": "features.0.2"})
    for stage in range(1, len(config.depths)):
        yield from merging(f"stages.{stage}.downsample", f"features.{2 * stage}")
    for ours, theirs in _swin_blocks(config):
        yield from layers(ours, theirs, {**NORMS_AND_MLP, "mixer.projection": "attn.proj"})
    yield from layers("", "", {"final.norm": "norm", "head": "head"})


def _swin_blocks(config: SwinConfig) -> Iterator[tuple[str, str]]:
    for stage, depth in enumerate(config.depths):
        yield from blocks(depth, f"stages.{stage}.blocks.{{}}", f"features.{2 * stage + 1}.{{}}")


def _swinv2(config: SwinV2Config) -> Iterator[Entry]:
    yield from _swin_frame(config)
    for block, theirs_block in _swin_blocks(config):
        ours, theirs = f"{block}.mixer", f"{theirs_block}.attn"
        yield same(f"{ours}.qkv.weight", f"{theirs}.qkv.weight")
        if config.qkv_bias:
            biases = f"{ours}.query_bias", f"{ours}.value_bias"
            yield Entry(  # the bias of the keys is zero
                biases,
                (f"{theirs}.qkv.bias",),
                lambda tensors: list(tensors[0].chunk(3)[::2]),
                lambda tensors: [torch.cat((tensors[0], torch.zeros_like(tensors[0]), tensors[1]))],
            )
        yield from scaled_cosine(ours, f"{theirs}.logit_scale", f"{theirs}.cpb_mlp")


def _efficientnet(config: EfficientNetConfig) -> Iterator[Entry]:
    """Map every tensor of a model; the parts of a block are numbered, one fewer without expansion."""
    yield from _normed("stem.first", "features.0")
    for stage, index, expansion in config.blocks():
        ours, theirs = f"stages.{stage}.{index}", f"features.{stage + 1}.{index}.block"
        first = 1 if expansion > 1 else 0
        if expansion > 1:
            yield from _normed(f"{ours}.widen", f"{theirs}.0")
        yield from _normed(f"{ours}.depthwise", f"{theirs}.{first}")
        yield from pointwise(f"{ours}.squeeze.reduce", f"{theirs}.{first + 1}.fc1")
        yield from pointwise(f"{ours}.squeeze.expand", f"{theirs}.{first + 1}.fc2")
        yield from _normed(f"{ours}.narrow", f"{theirs}.{first + 2}")
    yield from _normed("final", f"features.{len(STAGES) + 1}")
    yield from layer("head.classifier", "classifier.1")


def _normed(ours: str, theirs: str) -> Iterator[Entry]:
    return normed(ours, f"{theirs}.0", f"{theirs}.1")


_TABLES: dict[str, Table] = {
    "vit": _vit,
    "swin": _swin,
    "swinv2": _swinv2,
    "efficientnet": _efficientnet,
    "resnet": resnet,
}
_IGNORED = {
    "resnet": ("num_batches_tracked",),
    "swin": ("relative_position_index",),
    "swinv2": ("relative_position_index", "relative_coords_table"),
}
_NAMES = {
    **{f"vit_{size}_{patch}": f"vit_{size}{patch}" for size in "bl" for patch in (16, 32)},
    "vit_h_14": "vit_h14",
    **{f"swin_{size}": f"swin_{size}" for size in "tsb"},
    **{f"swin_v2_{size}": f"swinv2_{size}" for size in "tsb"},
    **{f"efficientnet_b{size}": f"efficientnet_b{size}_symmetric" for size in range(8)},
    **{f"resnet{depth}": f"resnet{depth}" for depth in (18, 34, 50, 101, 152)},
}
SOURCE = Source("torchvision", _TABLES, _NAMES, ignored=_IGNORED)
RENAMED = ((r"\.mlp\.linear_1\.", ".mlp.0."), (r"\.mlp\.linear_2\.", ".mlp.3."))
"""Names in older files to names in today's models."""


DEFAULT_WEIGHTS = "IMAGENET1K_V1"


class PublishedFile(NamedTuple):
    """A weight file for ImageNet's 1,000 classes."""

    name: str
    """On the server; ends in the first digits of the SHA-256 digest."""
    resize_px: int
    """Shorter side after resizing, before the central crop."""
    crop_px: int
    interpolation: str


FILES = {  # from torchvision 0.28's list of weights
    "efficientnet_b0": PublishedFile("efficientnet_b0_rwightman-7f5810bc.pth", 256, 224, "bicubic"),
    "efficientnet_b1": PublishedFile("efficientnet_b1_rwightman-bac287d4.pth", 256, 240, "bicubic"),
    "efficientnet_b1.IMAGENET1K_V2": PublishedFile("efficientnet_b1-c27df63c.pth", 255, 240, "bilinear"),
    "efficientnet_b2": PublishedFile("efficientnet_b2_rwightman-c35c1473.pth", 288, 288, "bicubic"),
    "efficientnet_b3": PublishedFile("efficientnet_b3_rwightman-b3899882.pth", 320, 300, "bicubic"),
    "efficientnet_b4": PublishedFile("efficientnet_b4_rwightman-23ab8bcd.pth", 384, 380, "bicubic"),
    "efficientnet_b5": PublishedFile("efficientnet_b5_lukemelas-1a07897c.pth", 456, 456, "bicubic"),
    "efficientnet_b6": PublishedFile("efficientnet_b6_lukemelas-24a108a5.pth", 528, 528, "bicubic"),
    "efficientnet_b7": PublishedFile("efficientnet_b7_lukemelas-c5b4e57e.pth", 600, 600, "bicubic"),
    "resnet18": PublishedFile("resnet18-f37072fd.pth", 256, 224, "bilinear"),
    "resnet34": PublishedFile("resnet34-b627a593.pth", 256, 224, "bilinear"),
    "resnet50": PublishedFile("resnet50-0676ba61.pth", 256, 224, "bilinear"),
    "resnet50.IMAGENET1K_V2": PublishedFile("resnet50-11ad3fa6.pth", 232, 224, "bilinear"),
    "resnet101": PublishedFile("resnet101-63fe2227.pth", 256, 224, "bilinear"),
    "resnet101.IMAGENET1K_V2": PublishedFile("resnet101-cd907fc2.pth", 232, 224, "bilinear"),
    "resnet152": PublishedFile("resnet152-394f9c45.pth", 256, 224, "bilinear"),
    "resnet152.IMAGENET1K_V2": PublishedFile("resnet152-f82ba261.pth", 232, 224, "bilinear"),
    "swin_t": PublishedFile("swin_t-704ceda3.pth", 232, 224, "bicubic"),
    "swin_s": PublishedFile("swin_s-5e29d889.pth", 246, 224, "bicubic"),
    "swin_b": PublishedFile("swin_b-68c6b09e.pth", 238, 224, "bicubic"),
    "swin_v2_t": PublishedFile("swin_v2_t-b137f0e2.pth", 260, 256, "bicubic"),
    "swin_v2_s": PublishedFile("swin_v2_s-637d8ceb.pth", 260, 256, "bicubic"),
    "swin_v2_b": PublishedFile("swin_v2_b-781e5279.pth", 272, 256, "bicubic"),
    "vit_b_16": PublishedFile("vit_b_16-c867db91.pth", 256, 224, "bilinear"),
    "vit_b_16.IMAGENET1K_SWAG_E2E_V1": PublishedFile("vit_b_16_swag-9ac1b537.pth", 384, 384, "bicubic"),
    "vit_b_16.IMAGENET1K_SWAG_LINEAR_V1": PublishedFile("vit_b_16_lc_swag-4e70ced5.pth", 224, 224, "bicubic"),
    "vit_b_32": PublishedFile("vit_b_32-d86f8d99.pth", 256, 224, "bilinear"),
    "vit_l_16": PublishedFile("vit_l_16-852ce7e3.pth", 242, 224, "bilinear"),
    "vit_l_16.IMAGENET1K_SWAG_E2E_V1": PublishedFile("vit_l_16_swag-4f3808c9.pth", 512, 512, "bicubic"),
    "vit_l_16.IMAGENET1K_SWAG_LINEAR_V1": PublishedFile("vit_l_16_lc_swag-4d563306.pth", 224, 224, "bicubic"),
    "vit_l_32": PublishedFile("vit_l_32-c7638314.pth", 256, 224, "bilinear"),
    "vit_h_14.IMAGENET1K_SWAG_E2E_V1": PublishedFile("vit_h_14_swag-80465313.pth", 518, 518, "bicubic"),
    "vit_h_14.IMAGENET1K_SWAG_LINEAR_V1": PublishedFile("vit_h_14_lc_swag-c1eb923e.pth", 224, 224, "bicubic"),
}
