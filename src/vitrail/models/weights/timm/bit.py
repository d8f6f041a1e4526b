"""Big Transfer networks of timm, which calls them second residual networks."""

from __future__ import annotations

from collections.abc import Iterator

from vitrail.models.bit import BiTConfig
from vitrail.models.weights.table import Entry, kernel, layer, pointwise


def entries(config: BiTConfig) -> Iterator[Entry]:
    """Name every tensor of a model."""
    yield kernel("stem.first", "stem.conv")
    for stage, depth in enumerate(config.depths):
        for index in range(depth):
            yield from block(f"stages.{stage}.{index}", f"stages.{stage}.blocks.{index}", projects=index == 0)
    yield from layer("final.norm", "norm")
    yield from pointwise("head", "head.fc")


def block(ours: str, theirs: str, *, projects: bool) -> Iterator[Entry]:
    """Name every tensor of a block, with the names that transformers has, too."""
    yield from layer(f"{ours}.activation.norm", f"{theirs}.norm1")
    yield kernel(f"{ours}.branch.0", f"{theirs}.conv1")
    yield from layer(f"{ours}.branch.1.norm", f"{theirs}.norm2")
    yield kernel(f"{ours}.branch.2", f"{theirs}.conv2")
    yield from layer(f"{ours}.branch.3.norm", f"{theirs}.norm3")
    yield kernel(f"{ours}.branch.4", f"{theirs}.conv3")
    if projects:
        yield kernel(f"{ours}.shortcut", f"{theirs}.downsample.conv")


TABLES = {"bit": entries}
NAMES = {
    f"resnetv2_{size}_bit": f"bit_r{size}" for size in ("50x1", "50x3", "101x1", "101x3", "152x2", "152x4")
}
