"""Second Pyramid Vision Transformers of timm."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from vitrail.models.pvtv2 import PVTv2Config
from vitrail.models.weights.table import Entry, layer, reshaped, same


def entries(config: PVTv2Config) -> Iterator[Entry]:
    """Name every tensor of a model."""
    for stage, depth in enumerate(config.depths):
        patches = (f"stages.{stage}.downsample",) * 2 if stage else ("stem", "patch_embed")
        yield from layer(f"{patches[0]}.convolution", f"{patches[1]}.proj")
        yield from layer(f"{patches[0]}.norm.norm", f"{patches[1]}.norm")
        for index in range(depth):
            block = f"stages.{stage}.blocks.{index}"  # has one name in both
            yield from layer(f"{block}.mixer_norm", f"{block}.norm1")
            yield from _attention(f"{block}.mixer", f"{block}.attn", config, stage)
            yield from layer(f"{block}.mlp_norm", f"{block}.norm2")
            yield from layer(f"{block}.mlp.expand", f"{block}.mlp.fc1")
            yield from layer(f"{block}.mlp.depthwise", f"{block}.mlp.dwconv")
            yield from layer(f"{block}.mlp.contract", f"{block}.mlp.fc2")
        yield from layer(f"stages.{stage}.norm", f"stages.{stage}.norm")
    yield from layer("head", "head")


def _attention(ours: str, theirs: str, config: PVTv2Config, stage: int) -> Iterator[Entry]:
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
    """Relate a joined tensor to that of the queries and the one, twice as long, of keys and values."""

    def split(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        length = len(tensors[0]) // 3
        return list(torch.split(tensors[0], [length, 2 * length]))

    return Entry((ours,), (query, key_value), lambda tensors: [torch.cat(tensors)], split)


TABLES = {"pvtv2": entries}
NAMES = {
    "pvt_v2_b0": "pvtv2_b0",
    "pvt_v2_b1": "pvtv2_b1",
    "pvt_v2_b2": "pvtv2_b2",
    "pvt_v2_b2_li": "pvtv2_b2_li",
    "pvt_v2_b3": "pvtv2_b3",
    "pvt_v2_b4": "pvtv2_b4",
    "pvt_v2_b5": "pvtv2_b5",
}
