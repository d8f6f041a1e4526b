"""Vision Transformers and DeiTs of timm."""

from __future__ import annotations

from collections.abc import Iterator

from vitrail.models.vit import ViTConfig
from vitrail.models.weights.table import Entry, layer, reshaped, rows, same


def entries(config: ViTConfig) -> Iterator[Entry]:
    """Name every tensor of a plain or distilled model with the published stem and heads."""
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


TABLES = {"vit": entries}
NAMES = {
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
}
