"""Vision Transformers of torchvision."""

from __future__ import annotations

from collections.abc import Iterator

from vitrail.models.vit import ViTConfig
from vitrail.models.weights.table import Entry, layer, reshaped, rows, same


def entries(config: ViTConfig) -> Iterator[Entry]:
    """Name every tensor of a plain model."""
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


TABLES = {"vit": entries}
NAMES = {
    "vit_b_16": "vit_b16",
    "vit_b_32": "vit_b32",
    "vit_l_16": "vit_l16",
    "vit_l_32": "vit_l32",
    "vit_h_14": "vit_h14",
}
