"""Swin Transformers V2 of timm."""

from __future__ import annotations

from collections.abc import Iterator

from vitrail.models.swinv2 import SwinV2Config
from vitrail.models.weights.table import Entry, layer, reshaped, same
from vitrail.models.weights.timm.swin import blocks, frame


def entries(config: SwinV2Config) -> Iterator[Entry]:
    """Name every tensor of a model."""
    yield from frame(config)
    for block in blocks(config):
        ours, theirs = f"stages.{block}.mixer", f"layers.{block}.attn"
        yield same(f"{ours}.qkv.weight", f"{theirs}.qkv.weight")
        if config.qkv_bias:
            yield same(f"{ours}.query_bias", f"{theirs}.q_bias")
            yield same(f"{ours}.value_bias", f"{theirs}.v_bias")
        yield reshaped(f"{ours}.log_scale", f"{theirs}.logit_scale", to_ours=(-1,), to_theirs=(-1, 1, 1))
        yield from layer(f"{ours}.relative_bias.expand", f"{theirs}.cpb_mlp.0")
        yield from layer(f"{ours}.relative_bias.contract", f"{theirs}.cpb_mlp.2", bias=False)


TABLES = {"swinv2": entries}
NAMES = {
    "swinv2_tiny_window8_256": "swinv2_t",
    "swinv2_tiny_window16_256": "swinv2_t_w16",
    "swinv2_small_window8_256": "swinv2_s",
    "swinv2_small_window16_256": "swinv2_s_w16",
    "swinv2_base_window8_256": "swinv2_b",
    "swinv2_base_window16_256": "swinv2_b_w16",
    "swinv2_base_window12_192": "swinv2_b_w12_192",
    "swinv2_base_window12to16_192to256": "swinv2_b_w12to16",
    "swinv2_base_window12to24_192to384": "swinv2_b_w12to24_384",
    "swinv2_large_window12_192": "swinv2_l_w12_192",
    "swinv2_large_window12to16_192to256": "swinv2_l_w12to16",
    "swinv2_large_window12to24_192to384": "swinv2_l_w12to24_384",
}
