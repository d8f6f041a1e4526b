"""Vision Transformers and DeiTs of timm."""

from __future__ import annotations

from collections.abc import Iterator

from vitrail.models.vit import ViTConfig
from vitrail.weights.table import Entry, layer, reshaped


def entries(config: ViTConfig) -> Iterator[Entry]:
    """Name every tensor of a plain or distilled model with the published stem and heads."""
    num_prefix = int(config.class_token) + int(config.distilled)
    yield from layer("stem", "patch_embed.proj")
    if num_prefix == 1:
        yield reshaped("prefix", "cls_token", to_ours=(1, config.width), to_theirs=(1, 1, config.width))
    yield reshaped(
        "positions.table", "pos_embed", to_ours=(-1, config.width), to_theirs=(1, -1, config.width)
    )
    for index in range(config.depth):
        ours, theirs = f"blocks.{index}", f"blocks.{index}"
        yield from layer(f"{ours}.mixer_norm", f"{theirs}.norm1")
        yield from layer(f"{ours}.mixer.qkv", f"{theirs}.attn.qkv", bias=config.qkv_bias)
        yield from layer(f"{ours}.mixer.projection", f"{theirs}.attn.proj")
        yield from layer(f"{ours}.mlp_norm", f"{theirs}.norm2")
        yield from layer(f"{ours}.mlp.expand", f"{theirs}.mlp.fc1")
        yield from layer(f"{ours}.mlp.contract", f"{theirs}.mlp.fc2")
    yield from layer("norm", "norm")
    yield from layer("head", "head")


TABLES = {"vit": entries}
NAMES = {"vit_base_patch16_224": "vit_b16"}
