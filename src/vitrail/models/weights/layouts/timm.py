"""Key tables of timm's models."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from vitrail.models.ablations import ResNetStemConfig
from vitrail.models.bit import BiTConfig
from vitrail.models.efficientnet import EfficientNetConfig
from vitrail.models.mlp_mixer import MLPMixerConfig
from vitrail.models.mvitv2 import MViTv2Config, block_shapes
from vitrail.models.pvtv2 import PVTv2Config
from vitrail.models.resnet import ResNetConfig
from vitrail.models.sequencer2d import Sequencer2DConfig
from vitrail.models.swin import SwinConfig
from vitrail.models.swinv2 import SwinV2Config
from vitrail.models.vit import ViTConfig
from vitrail.models.weights.table import (
    Entry,
    Source,
    Table,
    batched,
    blocks,
    changed,
    kernel,
    layer,
    layers,
    normed,
    pointwise,
    rows,
    same,
)

BLOCK = "stages.{}.blocks.{}"
NORMS = {"mixer_norm": "norm1", "mlp_norm": "norm2"}
NORMS_AND_MLP = {**NORMS, "mlp.expand": "mlp.fc1", "mlp.contract": "mlp.fc2"}
NORMS_AND_CHANNEL_MLP = {**NORMS, "mlp.expand": "mlp_channels.fc1", "mlp.contract": "mlp_channels.fc2"}


def _vit(config: ViTConfig) -> Iterator[Entry]:
    """Map every tensor of a plain, hybrid or distilled model with the published stem and heads."""
    if isinstance(config.stem, ResNetStemConfig):
        yield from _resnet_stem(config.stem)
    else:
        yield from layer("stem", "patch_embed.proj")
    prefix = ("cls_token", "dist_token")[: config.num_prefix]
    if prefix:
        yield rows("prefix", prefix, to_theirs=(1, 1, config.width))
    if config.positions.startswith("learned"):
        yield batched("positions.table", "pos_embed")
    for block, _ in blocks(config.depth, "blocks.{}", ""):  # has one name in both
        yield from layers(block, block, {**NORMS_AND_MLP, "mixer.projection": "attn.proj"})
        yield from layer(f"{block}.mixer.qkv", f"{block}.attn.qkv", bias=config.qkv_bias)
        if config.layer_scale is not None:
            yield same(f"{block}.mixer_end.scale.factor", f"{block}.ls1.gamma")
            yield same(f"{block}.mlp_end.scale.factor", f"{block}.ls2.gamma")
    heads = {"head.label": "head", "head.teacher": "head_dist"} if config.distilled else {"head": "head"}
    yield from layers("", "", {"norm": "norm", **heads})


def _resnet_stem(stem: ResNetStemConfig) -> Iterator[Entry]:
    backbone = "patch_embed.backbone"
    first = f"{backbone}.stem" if stem.depths else backbone
    yield kernel("stem.first", f"{first}.conv")
    yield from layer("stem.norm", f"{first}.norm")
    for ours, theirs in blocks(stem.depths, "stem.stages.{}.{}", f"{backbone}.{BLOCK}"):
        for part in range(3):
            yield kernel(f"{ours}.branch.{3 * part}", f"{theirs}.conv{part + 1}")
            yield from layer(f"{ours}.branch.{3 * part + 1}", f"{theirs}.norm{part + 1}")
        if ours.endswith(".0"):
            yield kernel(f"{ours}.shortcut.0", f"{theirs}.downsample.conv")
            yield from layer(f"{ours}.shortcut.1", f"{theirs}.downsample.norm")
    yield from layer("stem.projection", "patch_embed.proj")


def _mlp_mixer(config: MLPMixerConfig) -> Iterator[Entry]:
    token_mlp = {"mixer.expand": "mlp_tokens.fc1", "mixer.contract": "mlp_tokens.fc2"}
    yield from layers("", "", {"stem": "stem.proj", "norm": "norm", "head": "head"})
    for names in blocks(config.depth, "blocks.{}", "blocks.{}"):
        yield from layers(*names, {**NORMS_AND_CHANNEL_MLP, **token_mlp})


def _sequencer2d(config: Sequencer2DConfig) -> Iterator[Entry]:
    yield from layers("", "", {"stem": "stem.proj", "final.norm": "norm", "head": "head.fc"})
    for stage in range(1, len(config.depths)):
        yield from layer(f"stages.{stage}.downsample", f"stages.{stage}.downsample.down")
    for block, _ in blocks(config.depths, BLOCK, BLOCK):
        yield from layers(block, block, {**NORMS_AND_CHANNEL_MLP, "mixer.projection": "rnn_tokens.fc"})
        yield from _lstm(f"{block}.mixer.vertical", f"{block}.rnn_tokens.rnn_v")
        yield from _lstm(f"{block}.mixer.horizontal", f"{block}.rnn_tokens.rnn_h")


def _lstm(ours: str, theirs: str) -> Iterator[Entry]:
    for direction, suffix in (("ahead", ""), ("back", "_reverse")):
        for source, letter in (("input", "i"), ("hidden", "h")):
            yield same(f"{ours}.{direction}.{source}_weight", f"{theirs}.weight_{letter}h_l0{suffix}")
            yield same(f"{ours}.{direction}.{source}_bias", f"{theirs}.bias_{letter}h_l0{suffix}")


def _swin(config: SwinConfig) -> Iterator[Entry]:
    yield from _swin_frame(config)
    for ours, theirs in blocks(config.depths, "stages.{}.blocks.{}.mixer", "layers.{}.blocks.{}.attn"):
        yield from layer(f"{ours}.qkv", f"{theirs}.qkv", bias=config.qkv_bias)
        yield same(f"{ours}.relative_bias.table", f"{theirs}.relative_position_bias_table")


def _swin_frame(config: SwinConfig) -> Iterator[Entry]:
    """Map the tensors that Swin and Swin V2 share: all but those of the attention weights."""
    yield from layers("", "", {"stem.0": "patch_embed.proj", "stem.1.norm": "patch_embed.norm"})
    for stage in range(1, len(config.depths)):
        yield from merging(f"stages.{stage}.downsample", f"layers.{stage}.downsample")
    for ours, theirs in blocks(config.depths, BLOCK, "layers.{}.blocks.{}"):
        yield from layers(ours, theirs, {**NORMS_AND_MLP, "mixer.projection": "attn.proj"})
    yield from layers("", "", {"final.norm": "norm", "head": "head.fc"})


def merging(ours: str, theirs: str) -> Iterator[Entry]:
    """Map the patch merging of Swin and Swin V2."""
    yield from layer(f"{ours}.norm", f"{theirs}.norm")
    yield from layer(f"{ours}.reduction", f"{theirs}.reduction", bias=False)


def _swinv2(config: SwinV2Config) -> Iterator[Entry]:
    yield from _swin_frame(config)
    for ours, theirs in blocks(config.depths, "stages.{}.blocks.{}.mixer", "layers.{}.blocks.{}.attn"):
        yield same(f"{ours}.qkv.weight", f"{theirs}.qkv.weight")
        if config.qkv_bias:
            yield same(f"{ours}.query_bias", f"{theirs}.q_bias")
            yield same(f"{ours}.value_bias", f"{theirs}.v_bias")
        yield from scaled_cosine(ours, f"{theirs}.logit_scale", f"{theirs}.cpb_mlp")


def scaled_cosine(ours: str, scale: str, distances: str) -> Iterator[Entry]:
    """Map what Swin V2's attention adds: a scale per head, and an MLP that computes position biases."""
    yield changed(
        f"{ours}.log_scale", scale, lambda tensor: tensor.flatten(), lambda tensor: tensor[:, None, None]
    )
    yield from layer(f"{ours}.relative_bias.expand", f"{distances}.0")
    yield from layer(f"{ours}.relative_bias.contract", f"{distances}.2", bias=False)


def _pvtv2(config: PVTv2Config) -> Iterator[Entry]:
    for stage, depth in enumerate(config.depths):
        ours, theirs = (f"stages.{stage}.downsample",) * 2 if stage else ("stem", "patch_embed")
        yield from layers(ours, theirs, {"convolution": "proj", "norm.norm": "norm"})
        for block, _ in blocks(depth, f"stages.{stage}.blocks.{{}}", ""):  # has one name in both
            yield from layers(block, block, {**NORMS_AND_MLP, "mlp.depthwise": "mlp.dwconv"})
            yield from _pvtv2_attention(f"{block}.mixer", f"{block}.attn", config, stage)
        yield from layer(f"stages.{stage}.norm", f"stages.{stage}.norm")
    yield from layer("head", "head")


def _pvtv2_attention(ours: str, theirs: str, config: PVTv2Config, stage: int) -> Iterator[Entry]:
    yield from layer(f"{ours}.projection", f"{theirs}.proj")
    if config.pooled_keys is None and config.reductions[stage] == 1:
        for name in ("weight", "bias"):
            names = f"{theirs}.q.{name}", f"{theirs}.kv.{name}"
            yield Entry(
                (f"{ours}.qkv.{name}",),
                names,
                lambda tensors: [torch.cat(tensors)],
                lambda tensors: list(tensors[0].tensor_split([len(tensors[0]) // 3])),
            )
        return
    yield from layers(ours, theirs, {"query": "q", "key_value": "kv"})
    if config.pooled_keys is None:
        yield from layers(ours, theirs, {"reduction.convolution": "sr", "reduction.norm.norm": "norm"})
    else:
        yield from pointwise(f"{ours}.reduction.projection", f"{theirs}.sr")
        yield from layer(f"{ours}.reduction.norm", f"{theirs}.norm")


def _mvitv2(config: MViTv2Config) -> Iterator[Entry]:
    yield from layers(
        "", "", {"stem.projection": "patch_embed.proj", "final.norm": "norm", "head": "head.fc"}
    )
    names = blocks(config.depths, "stages.{}.{}", BLOCK)
    for shape, (ours, theirs) in zip(block_shapes(config), names, strict=True):
        yield from layers(ours, theirs, NORMS_AND_MLP)
        yield from _pooling_attention(f"{ours}.mixer", f"{theirs}.attn")
        if shape.dim != shape.hidden_dim:
            yield from layer(f"{ours}.mixer_skip", f"{theirs}.shortcut_proj_attn")
        if shape.hidden_dim != shape.out_dim:
            yield from layer(f"{ours}.mlp_skip", f"{theirs}.shortcut_proj_mlp")


def _pooling_attention(ours: str, theirs: str) -> Iterator[Entry]:
    yield from layers(ours, theirs, {"qkv": "qkv", "projection": "proj"})
    for part, letter in (("query", "q"), ("key", "k"), ("value", "v")):
        yield same(f"{ours}.{part}_pool.weight", f"{theirs}.pool_{letter}.weight")
        yield from layer(f"{ours}.{part}_pool.norm", f"{theirs}.norm_{letter}")
    yield same(f"{ours}.positions.by_row", f"{theirs}.rel_pos_h")
    yield same(f"{ours}.positions.by_column", f"{theirs}.rel_pos_w")


def resnet(config: ResNetConfig) -> Iterator[Entry]:
    """Map every tensor of a residual network; torchvision has the same names."""
    yield from resnet_backbone(config)
    yield from layer("head", "fc")


def resnet_backbone(config: ResNetConfig, ours: str = "", theirs: str = "") -> Iterator[Entry]:
    """Map all but the head; frozen batch norms keep no counts."""
    counts = config.norm == "batch"
    yield from normed(f"{ours}stem.first", f"{theirs}conv1", f"{theirs}bn1", counts=counts)
    for stage, depth in enumerate(config.depths):
        names_of_stage = blocks(depth, f"{ours}stages.{stage}.{{}}", f"{theirs}layer{stage + 1}.{{}}")
        for index, (block, published) in enumerate(names_of_stage):
            for part in range(config.num_convolutions):
                names = f"{published}.conv{part + 1}", f"{published}.bn{part + 1}"
                yield from normed(f"{block}.branch.{part}", *names, counts=counts)
            if config.has_projection(stage, index):
                names = f"{published}.downsample.0", f"{published}.downsample.1"
                yield from normed(f"{block}.shortcut", *names, counts=counts)


def _bit(config: BiTConfig) -> Iterator[Entry]:
    yield kernel("stem.first", "stem.conv")
    yield from bit_blocks(config, BLOCK)
    yield from layer("final.norm", "norm")
    yield from pointwise("head", "head.fc")


def bit_blocks(config: BiTConfig, published: str) -> Iterator[Entry]:
    """Map the blocks, whose tensors have the same names in transformers; ``published`` names a block."""
    for ours, theirs in blocks(config.depths, "stages.{}.{}", published):
        for part, norm in enumerate(("activation.norm", "branch.1.norm", "branch.3.norm")):
            yield from layer(f"{ours}.{norm}", f"{theirs}.norm{part + 1}")
            yield kernel(f"{ours}.branch.{2 * part}", f"{theirs}.conv{part + 1}")
        if ours.endswith(".0"):
            yield kernel(f"{ours}.shortcut", f"{theirs}.downsample.conv")


def _efficientnet(config: EfficientNetConfig) -> Iterator[Entry]:
    """Map every tensor of a model; a block without expansion numbers its layers from its second one."""
    yield from normed("stem.first", "conv_stem", "bn1")
    for stage, index, expansion in config.blocks():
        ours, theirs = f"stages.{stage}.{index}", f"blocks.{stage}.{index}"
        narrow, first = ("conv_pwl", 2) if expansion > 1 else ("conv_pw", 1)
        if expansion > 1:
            yield from normed(f"{ours}.widen", f"{theirs}.conv_pw", f"{theirs}.bn1")
        yield from normed(f"{ours}.depthwise", f"{theirs}.conv_dw", f"{theirs}.bn{first}")
        yield from pointwise(f"{ours}.squeeze.reduce", f"{theirs}.se.conv_reduce")
        yield from pointwise(f"{ours}.squeeze.expand", f"{theirs}.se.conv_expand")
        yield from normed(f"{ours}.narrow", f"{theirs}.{narrow}", f"{theirs}.bn{first + 1}")
    yield from normed("final", "conv_head", "bn2")
    yield from layer("head.classifier", "classifier")


_TABLES: dict[str, Table] = {
    "vit": _vit,
    "mlp_mixer": _mlp_mixer,
    "sequencer2d": _sequencer2d,
    "swin": _swin,
    "swinv2": _swinv2,
    "pvtv2": _pvtv2,
    "mvitv2": _mvitv2,
    "resnet": resnet,
    "bit": _bit,
    "efficientnet": _efficientnet,
}
_VIT_SIZES = {"tiny": "ti", "small": "s", "base": "b", "large": "l", "huge": "h"}
_NAMES = {
    **{
        f"vit_{size}_patch{patch}_{pixels}": f"vit_{_VIT_SIZES[size]}{patch}"
        for size, patches in {"tiny": (16,), "small": (16, 32), "base": (16, 32), "large": (16, 32)}.items()
        for patch in patches
        for pixels in (224, 384)
    },
    "vit_huge_patch14_224": "vit_h14",
    **{f"deit_{size}_patch16_224": f"deit_{_VIT_SIZES[size]}16" for size in ("tiny", "small", "base")},
    "deit_tiny_distilled_patch16_224": "deit_ti16_distilled",
    "deit_small_distilled_patch16_224": "deit_s16_distilled",
    "deit_base_distilled_patch16_224": "deit_b16_distilled",
    **{f"vit_tiny_r_s16_p8_{pixels}": "vit_r_ti16" for pixels in (224, 384)},
    **{f"vit_small_r26_s32_{pixels}": "vit_r26_s32" for pixels in (224, 384)},
    **{f"vit_base_r50_s16_{pixels}": "vit_r50_b16" for pixels in (224, 384)},
    **{f"vit_large_r50_s32_{pixels}": "vit_r50_l32" for pixels in (224, 384)},
    "deit_base_patch16_384": "deit_b16",
    "deit_base_distilled_patch16_384": "deit_b16_distilled",
    **{f"mixer_{size}{patch}_224": f"mixer_{size}{patch}" for size in "sbl" for patch in (16, 32)},
    **{f"sequencer2d_{size}": f"sequencer2d_{size}" for size in "sml"},
    **{f"swin_{size}_patch4_window7_224": f"swin_{size[0]}" for size in ("tiny", "small", "base", "large")},
    "swin_base_patch4_window12_384": "swin_b_384",
    "swin_large_patch4_window12_384": "swin_l_384",
    **{f"swinv2_{size}_window8_256": f"swinv2_{size[0]}" for size in ("tiny", "small", "base")},
    **{f"swinv2_{size}_window16_256": f"swinv2_{size[0]}_w16" for size in ("tiny", "small", "base")},
    **{f"swinv2_{size}_window12_192": f"swinv2_{size[0]}_w12_192" for size in ("base", "large")},
    **{f"swinv2_{size}_window12to16_192to256": f"swinv2_{size[0]}_w12to16" for size in ("base", "large")},
    **{f"swinv2_{size}_window12to24_192to384": f"swinv2_{size[0]}_w12to24_384" for size in ("base", "large")},
    **{f"pvt_v2_{size}": f"pvtv2_{size}" for size in ("b0", "b1", "b2", "b2_li", "b3", "b4", "b5")},
    **{f"mvitv2_{size}": f"mvitv2_{size[0]}" for size in ("tiny", "small", "base", "large")},
    **{f"resnet{depth}": f"resnet{depth}" for depth in (18, 34, 50, 101, 152)},
    **{
        f"resnetv2_{size}_bit": f"bit_r{size}"
        for size in ("50x1", "50x3", "101x1", "101x3", "152x2", "152x4")
    },
    **{f"tf_efficientnet_b{size}": f"efficientnet_b{size}" for size in range(8)},
    "tf_efficientnet_l2": "efficientnet_l2",
    **{f"efficientnet_b{size}": f"efficientnet_b{size}_symmetric" for size in range(5)},
}
SOURCE = Source("timm", _TABLES, _NAMES, ignored={"resnet": ("num_batches_tracked",)})
