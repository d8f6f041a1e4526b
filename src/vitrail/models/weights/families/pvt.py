"""Key tables of PVT and PVTv2: timm, transformers."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from vitrail.models.pvt import PVTConfig
from vitrail.models.pvtv2 import PVTv2Config
from vitrail.models.weights.table import Entry, joined_layers, layer, reshaped, same


def _hf_pvt(config: PVTConfig) -> Iterator[Entry]:
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
            yield from _hf_pvt_attention(
                f"{ours}.mixer", f"{theirs}.attention.self", ratio=config.reductions[stage]
            )
            yield from layer(f"{ours}.mixer.projection", f"{theirs}.attention.output.dense")
            yield from layer(f"{ours}.mlp_norm", f"{theirs}.layer_norm_2")
            yield from layer(f"{ours}.mlp.expand", f"{theirs}.mlp.dense1")
            yield from layer(f"{ours}.mlp.contract", f"{theirs}.mlp.dense2")
    yield from layer("norm", "pvt.encoder.layer_norm")
    yield from layer("head", "classifier")


def _hf_pvt_attention(ours: str, theirs: str, *, ratio: int) -> Iterator[Entry]:
    """Map the queries, keys and values of one layer, and its spatial-reduction convolution."""
    if ratio == 1:
        yield from joined_layers(f"{ours}.qkv", [f"{theirs}.{part}" for part in ("query", "key", "value")])
        return
    yield from layer(f"{ours}.query", f"{theirs}.query")
    yield from joined_layers(f"{ours}.key_value", [f"{theirs}.{part}" for part in ("key", "value")])
    yield from layer(f"{ours}.reduction.convolution", f"{theirs}.sequence_reduction")
    yield from layer(f"{ours}.reduction.norm.norm", f"{theirs}.layer_norm")


def _timm_pvtv2(config: PVTv2Config) -> Iterator[Entry]:
    for stage, depth in enumerate(config.depths):
        patches = (f"stages.{stage}.downsample",) * 2 if stage else ("stem", "patch_embed")
        yield from layer(f"{patches[0]}.convolution", f"{patches[1]}.proj")
        yield from layer(f"{patches[0]}.norm.norm", f"{patches[1]}.norm")
        for index in range(depth):
            block = f"stages.{stage}.blocks.{index}"  # has one name in both
            yield from layer(f"{block}.mixer_norm", f"{block}.norm1")
            yield from _timm_pvtv2_attention(f"{block}.mixer", f"{block}.attn", config, stage)
            yield from layer(f"{block}.mlp_norm", f"{block}.norm2")
            yield from layer(f"{block}.mlp.expand", f"{block}.mlp.fc1")
            yield from layer(f"{block}.mlp.depthwise", f"{block}.mlp.dwconv")
            yield from layer(f"{block}.mlp.contract", f"{block}.mlp.fc2")
        yield from layer(f"stages.{stage}.norm", f"stages.{stage}.norm")
    yield from layer("head", "head")


def _timm_pvtv2_attention(ours: str, theirs: str, config: PVTv2Config, stage: int) -> Iterator[Entry]:
    yield from layer(f"{ours}.projection", f"{theirs}.proj")
    if config.pooled_keys is None and config.reductions[stage] == 1:
        for name in ("weight", "bias"):
            yield _query_before_pairs(f"{ours}.qkv.{name}", f"{theirs}.q.{name}", f"{theirs}.kv.{name}")
        return
    yield from layer(f"{ours}.query", f"{theirs}.q")
    yield from layer(f"{ours}.key_value", f"{theirs}.kv")
    if config.pooled_keys is None:
        yield from layer(f"{ours}.reduction.convolution", f"{theirs}.sr")
        yield from layer(f"{ours}.reduction.norm.norm", f"{theirs}.norm")
        return
    width = config.widths[stage]
    yield reshaped(
        f"{ours}.reduction.projection.weight",
        f"{theirs}.sr.weight",
        to_ours=(width, width),
        to_theirs=(width, width, 1, 1),
    )
    yield same(f"{ours}.reduction.projection.bias", f"{theirs}.sr.bias")
    yield from layer(f"{ours}.reduction.norm", f"{theirs}.norm")


def _query_before_pairs(ours: str, query: str, key_value: str) -> Entry:
    """Map a joined tensor to one of the queries and one, twice as long, of keys and values."""

    def split(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        length = len(tensors[0]) // 3
        return list(torch.split(tensors[0], [length, 2 * length]))

    return Entry((ours,), (query, key_value), lambda tensors: [torch.cat(tensors)], split)


def _hf_pvtv2(config: PVTv2Config) -> Iterator[Entry]:
    for stage, depth in enumerate(config.depths):
        theirs_stage = f"pvt_v2.encoder.layers.{stage}"
        patches = f"stages.{stage}.downsample" if stage else "stem"
        yield from layer(f"{patches}.convolution", f"{theirs_stage}.patch_embedding.proj")
        yield from layer(f"{patches}.norm.norm", f"{theirs_stage}.patch_embedding.layer_norm")
        for index in range(depth):
            ours, theirs = f"stages.{stage}.blocks.{index}", f"{theirs_stage}.blocks.{index}"
            yield from layer(f"{ours}.mixer_norm", f"{theirs}.layer_norm_1")
            yield from _hf_pvtv2_attention(f"{ours}.mixer", f"{theirs}.attention", config, stage)
            yield from layer(f"{ours}.mlp_norm", f"{theirs}.layer_norm_2")
            yield from layer(f"{ours}.mlp.expand", f"{theirs}.mlp.dense1")
            yield from layer(f"{ours}.mlp.depthwise", f"{theirs}.mlp.dwconv.dwconv")
            yield from layer(f"{ours}.mlp.contract", f"{theirs}.mlp.dense2")
        yield from layer(f"stages.{stage}.norm", f"{theirs_stage}.layer_norm")
    yield from layer("head", "classifier")


def _hf_pvtv2_attention(ours: str, theirs: str, config: PVTv2Config, stage: int) -> Iterator[Entry]:
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


TABLES = {
    "hf": {"pvt": _hf_pvt, "pvtv2": _hf_pvtv2},
    "timm": {"pvtv2": _timm_pvtv2},
}
NAMES = {
    "hf": {
        "pvt-tiny-224": "pvt_t",
        "pvt-small-224": "pvt_s",
        "pvt-medium-224": "pvt_m",
        "pvt-large-224": "pvt_l",
        "pvt_v2_b0": "pvtv2_b0",
        "pvt_v2_b1": "pvtv2_b1",
        "pvt_v2_b2": "pvtv2_b2",
        "pvt_v2_b2_linear": "pvtv2_b2_li",
        "pvt_v2_b3": "pvtv2_b3",
        "pvt_v2_b4": "pvtv2_b4",
        "pvt_v2_b5": "pvtv2_b5",
    },
    "timm": {
        "pvt_v2_b0": "pvtv2_b0",
        "pvt_v2_b1": "pvtv2_b1",
        "pvt_v2_b2": "pvtv2_b2",
        "pvt_v2_b2_li": "pvtv2_b2_li",
        "pvt_v2_b3": "pvtv2_b3",
        "pvt_v2_b4": "pvtv2_b4",
        "pvt_v2_b5": "pvtv2_b5",
    },
}
