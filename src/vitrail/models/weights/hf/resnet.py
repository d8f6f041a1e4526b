"""Residual networks of transformers."""

from __future__ import annotations

from collections.abc import Iterator

from vitrail.models.resnet import ResNetConfig
from vitrail.models.weights.table import Entry, batch_norm, kernel, layer


def entries(config: ResNetConfig) -> Iterator[Entry]:
    """Name every tensor of a model."""
    for ours, theirs in convolutions(config):
        yield kernel(ours, f"{theirs}.convolution")
        yield from batch_norm(f"{ours}.norm", f"{theirs}.normalization", counts=config.norm == "batch")
    yield from layer("head", "classifier.1")


def _uncounted(config: ResNetConfig) -> Iterator[str]:
    """Name the numbers of batches, of which a frozen norm keeps none."""
    if config.norm == "frozen":
        for _, theirs in convolutions(config):
            yield f"{theirs}.normalization.num_batches_tracked"


def convolutions(config: ResNetConfig) -> Iterator[tuple[str, str]]:
    """Name the layers of all but the head, here and there."""
    yield "stem.first", "resnet.embedder.embedder"
    for stage, depth in enumerate(config.depths):
        for index in range(depth):
            ours, theirs = f"stages.{stage}.{index}", f"resnet.encoder.stages.{stage}.layers.{index}"
            for part in range(config.num_convolutions):
                yield f"{ours}.branch.{part}", f"{theirs}.layer.{part}"
            if config.has_projection(stage, index):
                yield f"{ours}.shortcut", f"{theirs}.shortcut"


TABLES = {"resnet": entries}
IGNORED = {"resnet": _uncounted}
NAMES = {f"resnet-{depth}": f"resnet{depth}" for depth in (18, 34, 50, 101, 152)}
