"""Residual networks of timm."""

from __future__ import annotations

from collections.abc import Iterator

from vitrail.models.resnet import ResNetConfig
from vitrail.models.weights.table import Entry, batch_norm, kernel, layer


def entries(config: ResNetConfig) -> Iterator[Entry]:
    """Name every tensor of a model."""
    for ours, convolution, norm in convolutions(config):
        yield kernel(ours, convolution)
        yield from batch_norm(f"{ours}.norm", norm, counts=config.norm == "batch")
    yield from layer("head", "fc")


def uncounted(config: ResNetConfig) -> Iterator[str]:
    """Name the numbers of batches, of which a frozen norm keeps none."""
    if config.norm == "frozen":
        for _, _, norm in convolutions(config):
            yield f"{norm}.num_batches_tracked"


def convolutions(config: ResNetConfig) -> Iterator[tuple[str, str, str]]:
    """Name the layers of all but the head, and their convolutions and norms there."""
    yield "stem.first", "conv1", "bn1"
    for stage, depth in enumerate(config.depths):
        for index in range(depth):
            ours, theirs = f"stages.{stage}.{index}", f"layer{stage + 1}.{index}"
            for part in range(config.num_convolutions):
                yield f"{ours}.branch.{part}", f"{theirs}.conv{part + 1}", f"{theirs}.bn{part + 1}"
            if config.has_projection(stage, index):
                yield f"{ours}.shortcut", f"{theirs}.downsample.0", f"{theirs}.downsample.1"


TABLES = {"resnet": entries}
IGNORED = {"resnet": uncounted}
NAMES = {name: name for name in ("resnet18", "resnet34", "resnet50", "resnet101", "resnet152")}
