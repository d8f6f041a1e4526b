"""Swin Transformers of timm."""

from __future__ import annotations

from collections.abc import Iterator

from vitrail.models.swin import SwinConfig
from vitrail.models.weights.table import Entry, layer, same


def entries(config: SwinConfig) -> Iterator[Entry]:
    """Name every tensor of a model."""
    yield from frame(config)
    for block in blocks(config):
        yield from layer(f"stages.{block}.mixer.qkv", f"layers.{block}.attn.qkv", bias=config.qkv_bias)
        yield same(
            f"stages.{block}.mixer.relative_bias.table", f"layers.{block}.attn.relative_position_bias_table"
        )


def frame(config: SwinConfig) -> Iterator[Entry]:
    """Name the tensors that Swin and Swin V2 share: all but those that make the attention's weights."""
    yield from layer("stem.0", "patch_embed.proj")
    yield from layer("stem.1.norm", "patch_embed.norm")
    for stage in range(1, len(config.depths)):
        ours, theirs = f"stages.{stage}.downsample", f"layers.{stage}.downsample"
        yield from layer(f"{ours}.norm", f"{theirs}.norm")
        yield from layer(f"{ours}.reduction", f"{theirs}.reduction", bias=False)
    for block in blocks(config):
        ours, theirs = f"stages.{block}", f"layers.{block}"
        yield from layer(f"{ours}.mixer_norm", f"{theirs}.norm1")
        yield from layer(f"{ours}.mixer.projection", f"{theirs}.attn.proj")
        yield from layer(f"{ours}.mlp_norm", f"{theirs}.norm2")
        yield from layer(f"{ours}.mlp.expand", f"{theirs}.mlp.fc1")
        yield from layer(f"{ours}.mlp.contract", f"{theirs}.mlp.fc2")
    yield from layer("final.norm", "norm")
    yield from layer("head", "head.fc")


def blocks(config: SwinConfig) -> Iterator[str]:
    """Name every block inside the list of stages."""
    for stage, depth in enumerate(config.depths):
        for index in range(depth):
            yield f"{stage}.blocks.{index}"


TABLES = {"swin": entries}
NAMES = {
    "swin_tiny_patch4_window7_224": "swin_t",
    "swin_small_patch4_window7_224": "swin_s",
    "swin_base_patch4_window7_224": "swin_b",
    "swin_large_patch4_window7_224": "swin_l",
    "swin_base_patch4_window12_384": "swin_b_384",
    "swin_large_patch4_window12_384": "swin_l_384",
}
