"""EfficientNets of torchvision."""

from __future__ import annotations

from collections.abc import Iterator

from vitrail.models.efficientnet import STAGES, EfficientNetConfig
from vitrail.models.weights.table import Entry, batch_norm, kernel, layer, pointwise


def entries(config: EfficientNetConfig) -> Iterator[Entry]:
    """Name every tensor of a model; the parts of a block are counted, one fewer where it does not widen."""
    yield from _normed("stem.first", "features.0")
    for stage, index, expansion in config.blocks():
        ours, theirs = f"stages.{stage}.{index}", f"features.{stage + 1}.{index}.block"
        first = 1 if expansion > 1 else 0
        if expansion > 1:
            yield from _normed(f"{ours}.widen", f"{theirs}.0")
        yield from _normed(f"{ours}.depthwise", f"{theirs}.{first}")
        yield from pointwise(f"{ours}.squeeze.reduce", f"{theirs}.{first + 1}.fc1")
        yield from pointwise(f"{ours}.squeeze.expand", f"{theirs}.{first + 1}.fc2")
        yield from _normed(f"{ours}.narrow", f"{theirs}.{first + 2}")
    yield from _normed("final", f"features.{len(STAGES) + 1}")
    yield from layer("head.classifier", "classifier.1")


def _normed(ours: str, theirs: str) -> Iterator[Entry]:
    yield kernel(ours, f"{theirs}.0")
    yield from batch_norm(f"{ours}.norm", f"{theirs}.1")


TABLES = {"efficientnet": entries}
NAMES = {f"efficientnet_b{size}": f"efficientnet_b{size}_symmetric" for size in range(8)}
