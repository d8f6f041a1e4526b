"""Key tables of ViT and DeiT: timm, transformers, torchvision and the authors' JAX files."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from vitrail.models.vit import ViTConfig
from vitrail.models.weights.table import Entry, joined_layers, layer, reshaped, rows, same


def _timm_vit(config: ViTConfig) -> Iterator[Entry]:
    """Map every tensor of a plain or distilled model with the published stem and heads."""
    width = config.width
    yield from layer("stem", "patch_embed.proj")
    prefix = ("cls_token", "dist_token")[: config.num_prefix]
    if prefix:
        yield rows("prefix", prefix, to_theirs=(1, 1, width))
    if config.positions == "learned":
        yield reshaped("positions.table", "pos_embed", to_ours=(-1, width), to_theirs=(1, -1, width))
    for index in range(config.depth):
        block = f"blocks.{index}"
        yield from layer(f"{block}.mixer_norm", f"{block}.norm1")
        yield from layer(f"{block}.mixer.qkv", f"{block}.attn.qkv", bias=config.qkv_bias)
        yield from layer(f"{block}.mixer.projection", f"{block}.attn.proj")
        yield from layer(f"{block}.mlp_norm", f"{block}.norm2")
        yield from layer(f"{block}.mlp.expand", f"{block}.mlp.fc1")
        yield from layer(f"{block}.mlp.contract", f"{block}.mlp.fc2")
        if config.layer_scale is not None:
            yield same(f"{block}.mixer_end.scale.factor", f"{block}.ls1.gamma")
            yield same(f"{block}.mlp_end.scale.factor", f"{block}.ls2.gamma")
    yield from layer("norm", "norm")
    if config.distilled:
        yield from layer("head.label", "head")
        yield from layer("head.teacher", "head_dist")
    else:
        yield from layer("head", "head")


def _hf_vit(config: ViTConfig) -> Iterator[Entry]:
    """Map every tensor of a plain model, or of a distilled ``DeiTForImageClassificationWithTeacher``."""
    width = config.width
    model = "deit" if config.distilled else "vit"
    embeddings = f"{model}.embeddings"
    yield from layer("stem", f"{embeddings}.patch_embeddings.projection")
    prefix = [f"{embeddings}.cls_token", f"{embeddings}.distillation_token"][: config.num_prefix]
    yield rows("prefix", prefix, to_theirs=(1, 1, width))
    positions = f"{embeddings}.position_embeddings"
    yield reshaped("positions.table", positions, to_ours=(-1, width), to_theirs=(1, -1, width))
    for index in range(config.depth):
        ours, theirs = f"blocks.{index}", f"{model}.layers.{index}"
        parts = [f"{theirs}.attention.{part}_proj" for part in "qkv"]
        yield from layer(f"{ours}.mixer_norm", f"{theirs}.layernorm_before")
        yield from joined_layers(f"{ours}.mixer.qkv", parts, bias=config.qkv_bias)
        yield from layer(f"{ours}.mixer.projection", f"{theirs}.attention.o_proj")
        yield from layer(f"{ours}.mlp_norm", f"{theirs}.layernorm_after")
        yield from layer(f"{ours}.mlp.expand", f"{theirs}.mlp.fc1")
        yield from layer(f"{ours}.mlp.contract", f"{theirs}.mlp.fc2")
    yield from layer("norm", f"{model}.layernorm")
    if config.distilled:
        yield from layer("head.label", "cls_classifier")
        yield from layer("head.teacher", "distillation_classifier")
    else:
        yield from layer("head", "classifier")


def _torchvision_vit(config: ViTConfig) -> Iterator[Entry]:
    width = config.width
    yield from layer("stem", "conv_proj")
    yield rows("prefix", ["class_token"], to_theirs=(1, 1, width))
    positions = "encoder.pos_embedding"
    yield reshaped("positions.table", positions, to_ours=(-1, width), to_theirs=(1, -1, width))
    for index in range(config.depth):
        ours, theirs = f"blocks.{index}", f"encoder.layers.encoder_layer_{index}"
        yield from layer(f"{ours}.mixer_norm", f"{theirs}.ln_1")
        for kind in ("weight", "bias"):
            yield same(f"{ours}.mixer.qkv.{kind}", f"{theirs}.self_attention.in_proj_{kind}")
        yield from layer(f"{ours}.mixer.projection", f"{theirs}.self_attention.out_proj")
        yield from layer(f"{ours}.mlp_norm", f"{theirs}.ln_2")
        yield from layer(f"{ours}.mlp.expand", f"{theirs}.mlp.0")
        yield from layer(f"{ours}.mlp.contract", f"{theirs}.mlp.3")
    yield from layer("norm", "encoder.ln")
    yield from layer("head", "heads.head")


PARTS = ("query", "key", "value")


def _jax_vit(config: ViTConfig) -> Iterator[Entry]:
    """Map every tensor of a plain Vision Transformer."""
    width = config.width
    yield Entry(
        ("stem.weight",),
        ("embedding/kernel",),
        lambda tensors: [tensors[0].permute(3, 2, 0, 1)],
        lambda tensors: [tensors[0].permute(2, 3, 1, 0)],
    )
    yield same("stem.bias", "embedding/bias")
    yield reshaped("prefix", "cls", to_ours=(1, width), to_theirs=(1, 1, width))
    positions = "Transformer/posembed_input/pos_embedding"
    yield reshaped("positions.table", positions, to_ours=(-1, width), to_theirs=(1, -1, width))
    for index in range(config.depth):
        ours, theirs = f"blocks.{index}", f"Transformer/encoderblock_{index}"
        attention = f"{theirs}/MultiHeadDotProductAttention_1"
        yield from _norm(f"{ours}.mixer_norm", f"{theirs}/LayerNorm_0")
        yield from _joined_heads(f"{ours}.mixer.qkv", attention, config)
        yield Entry(
            (f"{ours}.mixer.projection.weight",),
            (f"{attention}/out/kernel",),
            lambda tensors: [tensors[0].flatten(0, 1).T],
            lambda tensors: [tensors[0].T.reshape(config.num_heads, -1, width)],
        )
        yield same(f"{ours}.mixer.projection.bias", f"{attention}/out/bias")
        yield from _norm(f"{ours}.mlp_norm", f"{theirs}/LayerNorm_2")
        yield from _dense(f"{ours}.mlp.expand", f"{theirs}/MlpBlock_3/Dense_0")
        yield from _dense(f"{ours}.mlp.contract", f"{theirs}/MlpBlock_3/Dense_1")
    yield from _norm("norm", "Transformer/encoder_norm")
    yield from _dense("head", "head")


def _norm(ours: str, theirs: str) -> Iterator[Entry]:
    yield same(f"{ours}.weight", f"{theirs}/scale")
    yield same(f"{ours}.bias", f"{theirs}/bias")


def _dense(ours: str, theirs: str) -> Iterator[Entry]:
    yield Entry((f"{ours}.weight",), (f"{theirs}/kernel",), _transpose, _transpose)
    yield same(f"{ours}.bias", f"{theirs}/bias")


def _joined_heads(ours: str, theirs: str, config: ViTConfig) -> Iterator[Entry]:
    heads = config.num_heads
    yield Entry(
        (f"{ours}.weight",),
        tuple(f"{theirs}/{part}/kernel" for part in PARTS),
        lambda tensors: [torch.cat([kernel.flatten(1).T for kernel in tensors])],
        lambda tensors: [part.T.reshape(config.width, heads, -1) for part in tensors[0].chunk(3)],
    )
    yield Entry(
        (f"{ours}.bias",),
        tuple(f"{theirs}/{part}/bias" for part in PARTS),
        lambda tensors: [torch.cat([bias.flatten() for bias in tensors])],
        lambda tensors: [part.reshape(heads, -1) for part in tensors[0].chunk(3)],
    )


def _transpose(tensors: list[Tensor]) -> list[Tensor]:
    return [tensors[0].T]


TABLES = {
    "timm": {"vit": _timm_vit},
    "hf": {"vit": _hf_vit},
    "torchvision": {"vit": _torchvision_vit},
    "jax": {"vit": _jax_vit},
}
NAMES = {
    "timm": {
        "vit_tiny_patch16_224": "vit_ti16",
        "vit_tiny_patch16_384": "vit_ti16",
        "vit_small_patch16_224": "vit_s16",
        "vit_small_patch16_384": "vit_s16",
        "vit_small_patch32_224": "vit_s32",
        "vit_small_patch32_384": "vit_s32",
        "vit_base_patch16_224": "vit_b16",
        "vit_base_patch16_384": "vit_b16",
        "vit_base_patch32_224": "vit_b32",
        "vit_base_patch32_384": "vit_b32",
        "vit_large_patch16_224": "vit_l16",
        "vit_large_patch16_384": "vit_l16",
        "vit_large_patch32_224": "vit_l32",
        "vit_large_patch32_384": "vit_l32",
        "vit_huge_patch14_224": "vit_h14",
        "deit_tiny_patch16_224": "deit_ti16",
        "deit_small_patch16_224": "deit_s16",
        "deit_base_patch16_224": "deit_b16",
        "deit_base_patch16_384": "deit_b16",
        "deit_tiny_distilled_patch16_224": "deit_ti16_distilled",
        "deit_small_distilled_patch16_224": "deit_s16_distilled",
        "deit_base_distilled_patch16_224": "deit_b16_distilled",
        "deit_base_distilled_patch16_384": "deit_b16_distilled",
    },
    "hf": {
        "WinKawaks/vit-tiny-patch16-224": "vit_ti16",
        "WinKawaks/vit-small-patch16-224": "vit_s16",
        "google/vit-base-patch16-224": "vit_b16",
        "google/vit-base-patch16-384": "vit_b16",
        "google/vit-base-patch32-384": "vit_b32",
        "google/vit-large-patch16-224": "vit_l16",
        "google/vit-large-patch16-384": "vit_l16",
        "google/vit-large-patch32-384": "vit_l32",
        "facebook/deit-tiny-patch16-224": "deit_ti16",
        "facebook/deit-small-patch16-224": "deit_s16",
        "facebook/deit-base-patch16-224": "deit_b16",
        "facebook/deit-base-patch16-384": "deit_b16",
        "facebook/deit-tiny-distilled-patch16-224": "deit_ti16_distilled",
        "facebook/deit-small-distilled-patch16-224": "deit_s16_distilled",
        "facebook/deit-base-distilled-patch16-224": "deit_b16_distilled",
        "facebook/deit-base-distilled-patch16-384": "deit_b16_distilled",
    },
    "torchvision": {
        "vit_b_16": "vit_b16",
        "vit_b_32": "vit_b32",
        "vit_l_16": "vit_l16",
        "vit_l_32": "vit_l32",
        "vit_h_14": "vit_h14",
    },
    "jax": {
        "Ti_16": "vit_ti16",
        "S_16": "vit_s16",
        "S_32": "vit_s32",
        "B_16": "vit_b16",
        "B_32": "vit_b32",
        "L_16": "vit_l16",
        "ViT-B_16": "vit_b16",
        "ViT-B_32": "vit_b32",
        "ViT-L_16": "vit_l16",
        "ViT-L_32": "vit_l32",
        "ViT-H_14": "vit_h14",
    },
}
