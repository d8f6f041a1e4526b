"""Second Pyramid Vision Transformers of transformers."""

from __future__ import annotations

from collections.abc import Iterator

from vitrail.models.pvtv2 import PVTv2Config
from vitrail.models.weights.table import Entry, joined_layers, layer, reshaped, same


def entries(config: PVTv2Config) -> Iterator[Entry]:
    """Name every tensor of a model."""
    for stage, depth in enumerate(config.depths):
        theirs_stage = f"pvt_v2.encoder.layers.{stage}"
        patches = f"stages.{stage}.downsample" if stage else "stem"
        yield from layer(f"{patches}.convolution", f"{theirs_stage}.patch_embedding.proj")
        yield from layer(f"{patches}.norm.norm", f"{theirs_stage}.patch_embedding.layer_norm")
        for index in range(depth):
            ours, theirs = f"stages.{stage}.blocks.{index}", f"{theirs_stage}.blocks.{index}"
            yield from layer(f"{ours}.mixer_norm", f"{theirs}.layer_norm_1")
            yield from _attention(f"{ours}.mixer", f"{theirs}.attention", config, stage)
            yield from layer(f"{ours}.mlp_norm", f"{theirs}.layer_norm_2")
            yield from layer(f"{ours}.mlp.expand", f"{theirs}.mlp.dense1")
            yield from layer(f"{ours}.mlp.depthwise", f"{theirs}.mlp.dwconv.dwconv")
            yield from layer(f"{ours}.mlp.contract", f"{theirs}.mlp.dense2")
        yield from layer(f"stages.{stage}.norm", f"{theirs_stage}.layer_norm")
    yield from layer("head", "classifier")


def _attention(ours: str, theirs: str, config: PVTv2Config, stage: int) -> Iterator[Entry]:
    yield from layer(f"{ours}.projection", f"{theirs}.proj")
    if config.pooled_keys is None and config.reductions[stage] == 1:
        yield from joined_layers(f"{ours}.qkv", [f"{theirs}.{part}" for part in ("query", "key", "value")])
        return
    yield from layer(f"{ours}.query", f"{theirs}.query")
    yield from joined_layers(f"{ours}.key_value", [f"{theirs}.{part}" for part in ("key", "value")])
    if config.pooled_keys is None:
        yield from layer(f"{ours}.reduction.convolution", f"{theirs}.spatial_reduction")
        yield from layer(f"{ours}.reduction.norm.norm", f"{theirs}.layer_norm")
        return
    width = config.widths[stage]
    yield reshaped(
        f"{ours}.reduction.projection.weight",
        f"{theirs}.spatial_reduction.weight",
        to_ours=(width, width),
        to_theirs=(width, width, 1, 1),
    )
    yield same(f"{ours}.reduction.projection.bias", f"{theirs}.spatial_reduction.bias")
    yield from layer(f"{ours}.reduction.norm", f"{theirs}.layer_norm")


TABLES = {"pvtv2": entries}
NAMES = {
    "pvt_v2_b0": "pvtv2_b0",
    "pvt_v2_b1": "pvtv2_b1",
    "pvt_v2_b2": "pvtv2_b2",
    "pvt_v2_b2_linear": "pvtv2_b2_li",
    "pvt_v2_b3": "pvtv2_b3",
    "pvt_v2_b4": "pvtv2_b4",
    "pvt_v2_b5": "pvtv2_b5",
}
