"""Key tables of authors' files: ViT (JAX), MViT, DETR, and OpenAI's CLIP, whose names open_clip shares."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from vitrail.models.ablations import ResNetStemConfig
from vitrail.models.clip import CLIPConfig
from vitrail.models.detr import DETRConfig
from vitrail.models.mvit import MViTConfig
from vitrail.models.vit import ViTConfig
from vitrail.models.weights.layouts.hf import refuse_other_towers
from vitrail.models.weights.layouts.timm import NORMS_AND_MLP, resnet_backbone
from vitrail.models.weights.table import (
    Entry,
    Source,
    batched,
    blocks,
    changed,
    layer,
    layers,
    permuted,
    pointwise,
    rows,
    same,
    torch_attention,
)


def _jax_vit(config: ViTConfig) -> Iterator[Entry]:
    """Map every tensor of a plain Vision Transformer or a hybrid."""
    heads, width, stem = config.num_heads, config.width, "stem"
    if isinstance(config.stem, ResNetStemConfig):
        yield from _jax_resnet(config.stem)
        stem = "stem.projection"
    yield permuted(f"{stem}.weight", "embedding/kernel", 3, 2, 0, 1)
    yield same(f"{stem}.bias", "embedding/bias")
    yield batched("prefix", "cls")
    yield batched("positions.table", "Transformer/posembed_input/pos_embedding")
    for ours, theirs in blocks(config.depth, "blocks.{}", "Transformer/encoderblock_{}"):
        attention = f"{theirs}/MultiHeadDotProductAttention_1"
        yield from _jax_norm(f"{ours}.mixer_norm", f"{theirs}/LayerNorm_0")
        yield from _jax_heads(f"{ours}.mixer.qkv", attention, heads)
        yield changed(
            f"{ours}.mixer.projection.weight",
            f"{attention}/out/kernel",
            lambda tensor: tensor.flatten(0, 1).T,
            lambda tensor: tensor.T.reshape(heads, -1, width),
        )
        yield same(f"{ours}.mixer.projection.bias", f"{attention}/out/bias")
        yield from _jax_norm(f"{ours}.mlp_norm", f"{theirs}/LayerNorm_2")
        yield from _jax_dense(f"{ours}.mlp.expand", f"{theirs}/MlpBlock_3/Dense_0")
        yield from _jax_dense(f"{ours}.mlp.contract", f"{theirs}/MlpBlock_3/Dense_1")
    yield from _jax_norm("norm", "Transformer/encoder_norm")
    yield from _jax_dense("head", "head")


def _jax_resnet(stem: ResNetStemConfig) -> Iterator[Entry]:
    yield from _jax_convolution("stem.first", "stem.norm", "", "_root")
    for stage, depth in enumerate(stem.depths):
        for index in range(depth):
            ours, theirs = f"stem.stages.{stage}.{index}", f"block{stage + 1}/unit{index + 1}/"
            for part in range(3):
                names = f"{ours}.branch.{3 * part}", f"{ours}.branch.{3 * part + 1}"
                yield from _jax_convolution(*names, theirs, str(part + 1))
            if index == 0:
                yield from _jax_convolution(f"{ours}.shortcut.0", f"{ours}.shortcut.1", theirs, "_proj")


def _jax_convolution(convolution: str, norm: str, theirs: str, name: str) -> Iterator[Entry]:
    """Map a convolution and its group norm, whose published vectors may have four axes."""
    yield permuted(f"{convolution}.weight", f"{theirs}conv{name}/kernel", 3, 0, 1, 2)
    for ours, part in (("weight", "scale"), ("bias", "bias")):
        yield changed(f"{norm}.{ours}", f"{theirs}gn{name}/{part}", torch.flatten, lambda tensor: tensor)


def _jax_norm(ours: str, theirs: str) -> Iterator[Entry]:
    yield same(f"{ours}.weight", f"{theirs}/scale")
    yield same(f"{ours}.bias", f"{theirs}/bias")


def _jax_dense(ours: str, theirs: str) -> Iterator[Entry]:
    yield permuted(f"{ours}.weight", f"{theirs}/kernel", 1, 0)
    yield same(f"{ours}.bias", f"{theirs}/bias")


def _jax_heads(ours: str, theirs: str, heads: int) -> Iterator[Entry]:
    parts = [f"{theirs}/{part}" for part in ("query", "key", "value")]
    yield Entry(
        (f"{ours}.weight",),
        tuple(f"{part}/kernel" for part in parts),
        lambda tensors: [torch.cat([kernel.flatten(1).T for kernel in tensors])],
        lambda tensors: [part.T.unflatten(1, (heads, -1)) for part in tensors[0].chunk(3)],
    )
    yield Entry(
        (f"{ours}.bias",),
        tuple(f"{part}/bias" for part in parts),
        lambda tensors: [torch.cat([bias.flatten() for bias in tensors])],
        lambda tensors: [part.unflatten(0, (heads, -1)) for part in tensors[0].chunk(3)],
    )


def _mvit(config: MViTConfig) -> Iterator[Entry]:
    yield from layer("stem.projection", "patch_embed.proj")
    yield batched("prefix", "cls_token")
    yield batched("positions.table", "pos_embed")
    for stage, depth in enumerate(config.depths):
        for index in range(depth):
            ours, theirs = f"stages.{stage}.{index}", f"blocks.{sum(config.depths[:stage]) + index}"
            yield from layers(ours, theirs, NORMS_AND_MLP)
            yield from layers(f"{ours}.mixer", f"{theirs}.attn", {"qkv": "qkv", "projection": "proj"})
            pools = ("query", "key", "value") if stage and index == 0 else ("key", "value")
            for part in pools if config.pooling == "convolution" else ():
                yield changed(  # their convolutions have an axis of time
                    f"{ours}.mixer.{part}_pool.weight",
                    f"{theirs}.attn.pool_{part[0]}.weight",
                    lambda tensor: tensor.squeeze(2),
                    lambda tensor: tensor[:, :, None],
                )
                yield from layer(f"{ours}.mixer.{part}_pool.norm", f"{theirs}.attn.norm_{part[0]}")
            if index == depth - 1 and stage < len(config.depths) - 1:
                yield from layer(f"{ours}.mlp_skip", f"{theirs}.proj")
    yield from layer("norm", "norm")
    yield from layer("head", "head.projection")


def _detr(config: DETRConfig) -> Iterator[Entry]:
    mlp = {"mlp.expand": "linear1", "mlp.contract": "linear2"}
    encoder = {**mlp, "attention_norm": "norm1", "mlp_norm": "norm2"}
    decoder = {**mlp, "self_norm": "norm1", "cross_norm": "norm2", "mlp_norm": "norm3"}
    yield from resnet_backbone(config.resnet, "backbone.", "backbone.0.body.")
    yield from pointwise("projection", "input_proj")
    yield same("queries", "query_embed.weight")
    for ours, theirs in blocks(config.encoder_depth, "encoder.{}", "transformer.encoder.layers.{}"):
        yield from layers(ours, theirs, encoder)
        yield from torch_attention(f"{ours}.attention", f"{theirs}.self_attn")
    for ours, theirs in blocks(config.decoder_depth, "decoder.{}", "transformer.decoder.layers.{}"):
        yield from layers(ours, theirs, decoder)
        yield from torch_attention(f"{ours}.self_attention", f"{theirs}.self_attn")
        yield from torch_attention(f"{ours}.cross_attention", f"{theirs}.multihead_attn")
    yield from layers("", "", {"decoder_norm": "transformer.decoder.norm", "class_head": "class_embed"})
    for index in range(3):  # activations stand in between ours
        yield from layer(f"box_head.{2 * index}", f"bbox_embed.layers.{index}")


def _clip(config: CLIPConfig, *, text: str = "") -> Iterator[Entry]:
    """Map every tensor of a CLIP with a Vision Transformer.

    Raises:
        ConfigError: the model has another image tower.
    """
    refuse_other_towers(config)
    yield rows("image.prefix", ["visual.class_embedding"], to_theirs=(config.image_width,))
    yield same("image.positions.table", "visual.positional_embedding")
    yield same("image.stem.weight", "visual.conv1.weight")
    yield from layer("image.input_norm", "visual.ln_pre")
    yield from _clip_blocks("image", "visual.", config.image_depth)
    yield from layer("image.norm", "visual.ln_post")
    yield permuted("image.head.weight", "visual.proj", 1, 0)
    yield same("text.table.weight", f"{text}token_embedding.weight")
    yield same("text.positions.table", f"{text}positional_embedding")
    yield from _clip_blocks("text", text, config.text_depth)
    yield from layer("text.norm", f"{text}ln_final")
    yield permuted("text.projection.weight", f"{text}text_projection", 1, 0)
    yield same("logit_scale", "logit_scale")


def _clip_blocks(ours: str, theirs: str, depth: int) -> Iterator[Entry]:
    names = {"mixer_norm": "ln_1", "mlp_norm": "ln_2", "mlp.expand": "mlp.c_fc", "mlp.contract": "mlp.c_proj"}
    for block, published in blocks(depth, ours + ".blocks.{}", theirs + "transformer.resblocks.{}"):
        yield from layers(block, published, names)
        yield from torch_attention(f"{block}.mixer", f"{published}.attn")


JAX = Source(
    "jax",
    {"vit": _jax_vit},
    {
        "Ti_16": "vit_ti16",
        "S_16": "vit_s16",
        "S_32": "vit_s32",
        "B_16": "vit_b16",
        "B_32": "vit_b32",
        "L_16": "vit_l16",
        **{f"ViT-{size}_{patch}": f"vit_{size.lower()}{patch}" for size in "BL" for patch in (16, 32)},
        "ViT-H_14": "vit_h14",
        "R_Ti_16": "vit_r_ti16",
        "R26_S_32": "vit_r26_s32",
        "R50_L_32": "vit_r50_l32",
        **{
            f"R50+ViT-{size}_{patch}": f"vit_r50_{size.lower()}{patch}" for size in "BL" for patch in (16, 32)
        },
    },
)
DETR = Source(
    "detr",
    {"detr": _detr},
    {
        "detr_resnet50": "detr_r50",
        "detr_resnet101": "detr_r101",
        "detr_resnet50_dc5": "detr_r50_dc5",
        "detr_resnet101_dc5": "detr_r101_dc5",
    },
    ignored={"detr": ("num_batches_tracked",)},
)
SLOWFAST = Source("slowfast", {"mvit": _mvit}, {"MVIT_B_16_CONV": "mvit_b16"})
OPENAI = Source(
    "openai",
    {"clip": _clip},
    {
        "ViT-B/32": "clip_b32",
        "ViT-B/16": "clip_b16",
        "ViT-L/14": "clip_l14",
        "ViT-L/14@336px": "clip_l14_336",
    },
    ignored={"clip": ("input_resolution", "context_length", "vocab_size")},  # stored beside the weights
)
OPEN_CLIP = Source(
    "open_clip",
    {"clip": _clip},
    {  # models with QuickGELU, as our variants have it
        "ViT-B-32-quickgelu": "clip_b32",
        "ViT-B-16-quickgelu": "clip_b16",
        "ViT-L-14-quickgelu": "clip_l14",
        "ViT-L-14-336-quickgelu": "clip_l14_336",
    },
    ignored={"clip": ("attn_mask",)},  # causal masks, which are computed
    other_tables={"clip": partial(_clip, text="text.")},  # of a ``CustomTextCLIP``
)
