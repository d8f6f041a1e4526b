"""The ``.npz`` files of the Vision Transformer's authors.

A dense layer's kernel has its inputs first, an attention's kernels keep the heads as an axis of their own,
and a convolution's kernel is height, width, input, output.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from vitrail.models.vit import ViTConfig
from vitrail.models.weights.table import Entry, reshaped, same

PARTS = ("query", "key", "value")


def entries(config: ViTConfig) -> Iterator[Entry]:
    """Name every tensor of a plain Vision Transformer."""
    width = config.width
    yield Entry(
        ("stem.weight",),
        ("embedding/kernel",),
        lambda tensors: [tensors[0].permute(3, 2, 0, 1)],
        lambda tensors: [tensors[0].permute(2, 3, 1, 0)],
    )
    yield same("stem.bias", "embedding/bias")
    yield reshaped("prefix", "cls", to_ours=(1, width), to_theirs=(1, 1, width))
    positions = "Transformer/posembed_input/pos_embedding"
    yield reshaped("positions.table", positions, to_ours=(-1, width), to_theirs=(1, -1, width))
    for index in range(config.depth):
        ours, theirs = f"blocks.{index}", f"Transformer/encoderblock_{index}"
        attention = f"{theirs}/MultiHeadDotProductAttention_1"
        yield from _norm(f"{ours}.mixer_norm", f"{theirs}/LayerNorm_0")
        yield from _joined_heads(f"{ours}.mixer.qkv", attention, config)
        yield Entry(
            (f"{ours}.mixer.projection.weight",),
            (f"{attention}/out/kernel",),
            lambda tensors: [tensors[0].flatten(0, 1).T],
            lambda tensors: [tensors[0].T.reshape(config.num_heads, -1, width)],
        )
        yield same(f"{ours}.mixer.projection.bias", f"{attention}/out/bias")
        yield from _norm(f"{ours}.mlp_norm", f"{theirs}/LayerNorm_2")
        yield from _dense(f"{ours}.mlp.expand", f"{theirs}/MlpBlock_3/Dense_0")
        yield from _dense(f"{ours}.mlp.contract", f"{theirs}/MlpBlock_3/Dense_1")
    yield from _norm("norm", "Transformer/encoder_norm")
    yield from _dense("head", "head")


def _norm(ours: str, theirs: str) -> Iterator[Entry]:
    yield same(f"{ours}.weight", f"{theirs}/scale")
    yield same(f"{ours}.bias", f"{theirs}/bias")


def _dense(ours: str, theirs: str) -> Iterator[Entry]:
    yield Entry((f"{ours}.weight",), (f"{theirs}/kernel",), _transpose, _transpose)
    yield same(f"{ours}.bias", f"{theirs}/bias")


def _joined_heads(ours: str, theirs: str, config: ViTConfig) -> Iterator[Entry]:
    heads = config.num_heads
    yield Entry(
        (f"{ours}.weight",),
        tuple(f"{theirs}/{part}/kernel" for part in PARTS),
        lambda tensors: [torch.cat([kernel.flatten(1).T for kernel in tensors])],
        lambda tensors: [part.T.reshape(config.width, heads, -1) for part in tensors[0].chunk(3)],
    )
    yield Entry(
        (f"{ours}.bias",),
        tuple(f"{theirs}/{part}/bias" for part in PARTS),
        lambda tensors: [torch.cat([bias.flatten() for bias in tensors])],
        lambda tensors: [part.reshape(heads, -1) for part in tensors[0].chunk(3)],
    )


def _transpose(tensors: list[Tensor]) -> list[Tensor]:
    return [tensors[0].T]


TABLES = {"vit": entries}
# Steiner et al. 2022, the published files' names
NAMES = {
    "Ti_16": "vit_ti16",
    "S_16": "vit_s16",
    "S_32": "vit_s32",
    "B_16": "vit_b16",
    "B_32": "vit_b32",
    "L_16": "vit_l16",
    "ViT-B_16": "vit_b16",
    "ViT-B_32": "vit_b32",
    "ViT-L_16": "vit_l16",
    "ViT-L_32": "vit_l32",
    "ViT-H_14": "vit_h14",
}
