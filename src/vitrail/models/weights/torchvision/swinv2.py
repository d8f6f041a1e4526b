"""Swin Transformers V2 of torchvision, which hold a bias of the keys that is never used."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from vitrail.models.swinv2 import SwinV2Config
from vitrail.models.weights.table import Entry, layer, reshaped, same
from vitrail.models.weights.torchvision.swin import frame, mixers


def entries(config: SwinV2Config) -> Iterator[Entry]:
    """Name every tensor of a model."""
    yield from frame(config)
    for ours, theirs in mixers(config):
        yield same(f"{ours}.qkv.weight", f"{theirs}.qkv.weight")
        if config.qkv_bias:
            yield Entry(
                (f"{ours}.query_bias", f"{ours}.value_bias"),
                (f"{theirs}.qkv.bias",),
                _without_key_bias,
                _with_key_bias,
            )
        yield reshaped(f"{ours}.log_scale", f"{theirs}.logit_scale", to_ours=(-1,), to_theirs=(-1, 1, 1))
        yield from layer(f"{ours}.relative_bias.expand", f"{theirs}.cpb_mlp.0")
        yield from layer(f"{ours}.relative_bias.contract", f"{theirs}.cpb_mlp.2", bias=False)


def ignored(config: SwinV2Config) -> Iterator[str]:
    """Name the tables of indices and coordinates."""
    for _, theirs in mixers(config):
        yield f"{theirs}.relative_position_index"
        yield f"{theirs}.relative_coords_table"


def _without_key_bias(tensors: list[Tensor]) -> list[Tensor]:
    query, _, value = tensors[0].chunk(3)
    return [query, value]


def _with_key_bias(tensors: list[Tensor]) -> list[Tensor]:
    query, value = tensors
    return [torch.cat((query, torch.zeros_like(query), value))]


TABLES = {"swinv2": entries}
IGNORED = {"swinv2": ignored}
NAMES = {"swin_v2_t": "swinv2_t", "swin_v2_s": "swinv2_s", "swin_v2_b": "swinv2_b"}
