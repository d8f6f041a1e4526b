"""Big Transfer networks of transformers, which builds the narrow ones only: its last norm has no factor."""

from __future__ import annotations

from collections.abc import Iterator

from vitrail.models.bit import BiTConfig
from vitrail.models.weights.table import Entry, kernel, layer
from vitrail.models.weights.timm.bit import block


def entries(config: BiTConfig) -> Iterator[Entry]:
    """Name every tensor of a model."""
    yield kernel("stem.first", "bit.embedder.convolution")
    for stage, depth in enumerate(config.depths):
        for index in range(depth):
            yield from block(
                f"stages.{stage}.{index}",
                f"bit.encoder.stages.{stage}.layers.{index}",
                projects=index == 0,
            )
    yield from layer("final.norm", "bit.norm")
    yield from layer("head", "classifier.1")


TABLES = {"bit": entries}
NAMES = {"bit-50": "bit_r50x1", "bit-101": "bit_r101x1"}
