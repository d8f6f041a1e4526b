"""Key tables of the authors' own files: ViT (JAX), DETR, and OpenAI's CLIP, whose names open_clip shares."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from vitrail.models.clip import CLIPConfig
from vitrail.models.detr import DETRConfig
from vitrail.models.vit import ViTConfig
from vitrail.models.weights.layouts.hf import refuse_other_towers
from vitrail.models.weights.layouts.timm import resnet_backbone
from vitrail.models.weights.table import (
    Entry,
    Source,
    batched,
    changed,
    layer,
    layers,
    pointwise,
    rows,
    same,
    transposed,
)


def _jax_vit(config: ViTConfig) -> Iterator[Entry]:
    """Map every tensor of a plain Vision Transformer."""
    heads, width = config.num_heads, config.width
    yield changed(
        "stem.weight",
        "embedding/kernel",
        lambda tensor: tensor.permute(3, 2, 0, 1),
        lambda tensor: tensor.permute(2, 3, 1, 0),
    )
    yield same("stem.bias", "embedding/bias")
    yield batched("prefix", "cls")
    yield batched("positions.table", "Transformer/posembed_input/pos_embedding")
    for index in range(config.depth):
        ours, theirs = f"blocks.{index}", f"Transformer/encoderblock_{index}"
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


def _jax_norm(ours: str, theirs: str) -> Iterator[Entry]:
    yield same(f"{ours}.weight", f"{theirs}/scale")
    yield same(f"{ours}.bias", f"{theirs}/bias")


def _jax_dense(ours: str, theirs: str) -> Iterator[Entry]:
    yield transposed(f"{ours}.weight", f"{theirs}/kernel")
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


def _detr(config: DETRConfig) -> Iterator[Entry]:
    mlp = {"mlp.expand": "linear1", "mlp.contract": "linear2"}
    encoder = {**mlp, "attention_norm": "norm1", "mlp_norm": "norm2"}
    decoder = {**mlp, "self_norm": "norm1", "cross_norm": "norm2", "mlp_norm": "norm3"}
    yield from resnet_backbone(config.backbone, "backbone.", "backbone.0.body.")
    yield from pointwise("projection", "input_proj")
    yield same("queries", "query_embed.weight")
    for index in range(config.encoder_depth):
        ours, theirs = f"encoder.{index}", f"transformer.encoder.layers.{index}"
        yield from layers(ours, theirs, encoder)
        yield from _torch_attention(f"{ours}.attention", f"{theirs}.self_attn")
    for index in range(config.decoder_depth):
        ours, theirs = f"decoder.{index}", f"transformer.decoder.layers.{index}"
        yield from layers(ours, theirs, decoder)
        yield from _torch_attention(f"{ours}.self_attention", f"{theirs}.self_attn")
        yield from _torch_attention(f"{ours}.cross_attention", f"{theirs}.multihead_attn")
    yield from layer("decoder_norm", "transformer.decoder.norm")
    yield from layer("class_head", "class_embed")
    for index in range(3):  # activations stand in between ours
        yield from layer(f"box_head.{2 * index}", f"bbox_embed.layers.{index}")


def _torch_attention(ours: str, theirs: str) -> Iterator[Entry]:
    """Map the tensors of ``nn.MultiheadAttention``."""
    for name in ("weight", "bias"):
        yield same(f"{ours}.qkv.{name}", f"{theirs}.in_proj_{name}")
    yield from layer(f"{ours}.projection", f"{theirs}.out_proj")


def _clip(config: CLIPConfig, *, text: str = "") -> Iterator[Entry]:
    """Map every tensor of a CLIP with a Vision Transformer.

    Args:
        text: name prefix of the text tower's tensors.

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
    yield transposed("image.head.weight", "visual.proj")
    yield same("text.table.weight", f"{text}token_embedding.weight")
    yield same("text.positions.table", f"{text}positional_embedding")
    yield from _clip_blocks("text", text, config.text_depth)
    yield from layer("text.norm", f"{text}ln_final")
    yield transposed("text.projection.weight", f"{text}text_projection")
    yield same("logit_scale", "logit_scale")


def _clip_blocks(ours: str, theirs: str, depth: int) -> Iterator[Entry]:
    names = {"mixer_norm": "ln_1", "mlp_norm": "ln_2", "mlp.expand": "mlp.c_fc", "mlp.contract": "mlp.c_proj"}
    for index in range(depth):
        block, published = f"{ours}.blocks.{index}", f"{theirs}transformer.resblocks.{index}"
        yield from layers(block, published, names)
        yield from _torch_attention(f"{block}.mixer", f"{published}.attn")


def _clip_named_text(config: CLIPConfig) -> Iterator[Entry]:
    """Map every tensor of a ``CustomTextCLIP``."""
    return _clip(config, text="text.")


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
    other_tables={"clip": _clip_named_text},
)
