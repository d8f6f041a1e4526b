"""Key table of MViTv2: timm."""

from __future__ import annotations

from collections.abc import Iterator

from vitrail.models.mvitv2 import MViTv2Config, block_shapes
from vitrail.models.weights.table import Entry, layer, same


def _timm_mvitv2(config: MViTv2Config) -> Iterator[Entry]:
    shapes = iter(block_shapes(config))
    yield from layer("stem.projection", "patch_embed.proj")
    for stage, depth in enumerate(config.depths):
        for index in range(depth):
            shape = next(shapes)
            ours, theirs = f"stages.{stage}.{index}", f"stages.{stage}.blocks.{index}"
            yield from layer(f"{ours}.mixer_norm", f"{theirs}.norm1")
            yield from _attention(f"{ours}.mixer", f"{theirs}.attn")
            if shape.dim != shape.hidden_dim:
                yield from layer(f"{ours}.mixer_skip", f"{theirs}.shortcut_proj_attn")
            yield from layer(f"{ours}.mlp_norm", f"{theirs}.norm2")
            yield from layer(f"{ours}.mlp.expand", f"{theirs}.mlp.fc1")
            yield from layer(f"{ours}.mlp.contract", f"{theirs}.mlp.fc2")
            if shape.hidden_dim != shape.out_dim:
                yield from layer(f"{ours}.mlp_skip", f"{theirs}.shortcut_proj_mlp")
    yield from layer("final.norm", "norm")
    yield from layer("head", "head.fc")


def _attention(ours: str, theirs: str) -> Iterator[Entry]:
    yield from layer(f"{ours}.qkv", f"{theirs}.qkv")
    for part, letter in (("query", "q"), ("key", "k"), ("value", "v")):
        yield same(f"{ours}.{part}_pool.weight", f"{theirs}.pool_{letter}.weight")
        yield from layer(f"{ours}.{part}_pool.norm", f"{theirs}.norm_{letter}")
    yield same(f"{ours}.positions.by_row", f"{theirs}.rel_pos_h")
    yield same(f"{ours}.positions.by_column", f"{theirs}.rel_pos_w")
    yield from layer(f"{ours}.projection", f"{theirs}.proj")


TABLES = {
    "timm": {"mvitv2": _timm_mvitv2},
}
NAMES = {
    "timm": {
        "mvitv2_tiny": "mvitv2_t",
        "mvitv2_small": "mvitv2_s",
        "mvitv2_base": "mvitv2_b",
        "mvitv2_large": "mvitv2_l",
    },
}
