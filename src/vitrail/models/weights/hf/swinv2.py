"""Swin Transformers V2 of transformers."""

from __future__ import annotations

from collections.abc import Iterator

from vitrail.models.swinv2 import SwinV2Config
from vitrail.models.weights.hf.swin import blocks, frame
from vitrail.models.weights.table import Entry, joined, layer, reshaped, same


def entries(config: SwinV2Config) -> Iterator[Entry]:
    """Name every tensor of a model."""
    yield from frame(config, "swinv2")
    for ours, theirs in blocks(config, "swinv2"):
        mixer, attention = f"{ours}.mixer", f"{theirs}.attention.self"
        yield joined(
            f"{mixer}.qkv.weight", [f"{attention}.{part}.weight" for part in ("query", "key", "value")]
        )
        if config.qkv_bias:
            yield same(f"{mixer}.query_bias", f"{attention}.query.bias")
            yield same(f"{mixer}.value_bias", f"{attention}.value.bias")
        yield reshaped(f"{mixer}.log_scale", f"{attention}.logit_scale", to_ours=(-1,), to_theirs=(-1, 1, 1))
        distances = f"{attention}.continuous_position_bias_mlp"
        yield from layer(f"{mixer}.relative_bias.expand", f"{distances}.0")
        yield from layer(f"{mixer}.relative_bias.contract", f"{distances}.2", bias=False)
        yield from layer(f"{mixer}.projection", f"{theirs}.attention.output.dense")
        yield from layer(f"{ours}.mlp.expand", f"{theirs}.intermediate.dense")
        yield from layer(f"{ours}.mlp.contract", f"{theirs}.output.dense")


def ignored(config: SwinV2Config) -> Iterator[str]:
    """Name the tables of indices and coordinates, which older files hold."""
    for _, theirs in blocks(config, "swinv2"):
        yield f"{theirs}.attention.self.relative_position_index"
        yield f"{theirs}.attention.self.relative_coords_table"


TABLES = {"swinv2": entries}
IGNORED = {"swinv2": ignored}
NAMES = {
    "microsoft/swinv2-tiny-patch4-window8-256": "swinv2_t",
    "microsoft/swinv2-tiny-patch4-window16-256": "swinv2_t_w16",
    "microsoft/swinv2-small-patch4-window8-256": "swinv2_s",
    "microsoft/swinv2-small-patch4-window16-256": "swinv2_s_w16",
    "microsoft/swinv2-base-patch4-window8-256": "swinv2_b",
    "microsoft/swinv2-base-patch4-window16-256": "swinv2_b_w16",
    "microsoft/swinv2-base-patch4-window12-192-22k": "swinv2_b_w12_192",
    "microsoft/swinv2-base-patch4-window12to16-192to256-22kto1k-ft": "swinv2_b_w12to16",
    "microsoft/swinv2-base-patch4-window12to24-192to384-22kto1k-ft": "swinv2_b_w12to24_384",
    "microsoft/swinv2-large-patch4-window12-192-22k": "swinv2_l_w12_192",
    "microsoft/swinv2-large-patch4-window12to16-192to256-22kto1k-ft": "swinv2_l_w12to16",
    "microsoft/swinv2-large-patch4-window12to24-192to384-22kto1k-ft": "swinv2_l_w12to24_384",
}
