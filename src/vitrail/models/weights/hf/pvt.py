"""Pyramid Vision Transformers of transformers."""

from __future__ import annotations

from collections.abc import Iterator

from vitrail.models.pvt import PVTConfig
from vitrail.models.weights.table import Entry, joined_layers, layer, reshaped


def entries(config: PVTConfig) -> Iterator[Entry]:
    """Name every tensor of a model."""
    for stage, (width, depth) in enumerate(zip(config.widths, config.depths, strict=True)):
        patches = f"pvt.encoder.patch_embeddings.{stage}"
        yield from layer(f"stages.{stage}.patches.convolution", f"{patches}.projection")
        yield from layer(f"stages.{stage}.patches.norm.norm", f"{patches}.layer_norm")
        yield reshaped(
            f"stages.{stage}.positions.table",
            f"{patches}.position_embeddings",
            to_ours=(-1, width),
            to_theirs=(1, -1, width),
        )
        if stage == len(config.depths) - 1:
            yield reshaped(
                f"stages.{stage}.prefix",
                f"{patches}.cls_token",
                to_ours=(1, width),
                to_theirs=(1, 1, width),
            )
        for index in range(depth):
            ours, theirs = f"stages.{stage}.blocks.{index}", f"pvt.encoder.block.{stage}.{index}"
            yield from layer(f"{ours}.mixer_norm", f"{theirs}.layer_norm_1")
            yield from _attention(f"{ours}.mixer", f"{theirs}.attention.self", ratio=config.reductions[stage])
            yield from layer(f"{ours}.mixer.projection", f"{theirs}.attention.output.dense")
            yield from layer(f"{ours}.mlp_norm", f"{theirs}.layer_norm_2")
            yield from layer(f"{ours}.mlp.expand", f"{theirs}.mlp.dense1")
            yield from layer(f"{ours}.mlp.contract", f"{theirs}.mlp.dense2")
    yield from layer("norm", "pvt.encoder.layer_norm")
    yield from layer("head", "classifier")


def _attention(ours: str, theirs: str, *, ratio: int) -> Iterator[Entry]:
    """Name the queries, keys and values of one layer, and the convolution that reduces its keys."""
    if ratio == 1:
        yield from joined_layers(f"{ours}.qkv", [f"{theirs}.{part}" for part in ("query", "key", "value")])
        return
    yield from layer(f"{ours}.query", f"{theirs}.query")
    yield from joined_layers(f"{ours}.key_value", [f"{theirs}.{part}" for part in ("key", "value")])
    yield from layer(f"{ours}.reduction.convolution", f"{theirs}.sequence_reduction")
    yield from layer(f"{ours}.reduction.norm.norm", f"{theirs}.layer_norm")


TABLES = {"pvt": entries}
NAMES = {
    "pvt-tiny-224": "pvt_t",
    "pvt-small-224": "pvt_s",
    "pvt-medium-224": "pvt_m",
    "pvt-large-224": "pvt_l",
}
