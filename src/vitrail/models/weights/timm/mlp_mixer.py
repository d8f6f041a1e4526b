"""MLP-Mixers of timm."""

from __future__ import annotations

from collections.abc import Iterator

from vitrail.models.mlp_mixer import MLPMixerConfig
from vitrail.models.weights.table import Entry, layer


def entries(config: MLPMixerConfig) -> Iterator[Entry]:
    """Name every tensor of a model."""
    yield from layer("stem", "stem.proj")
    for index in range(config.depth):
        block = f"blocks.{index}"
        yield from layer(f"{block}.mixer_norm", f"{block}.norm1")
        yield from layer(f"{block}.mixer.expand", f"{block}.mlp_tokens.fc1")
        yield from layer(f"{block}.mixer.contract", f"{block}.mlp_tokens.fc2")
        yield from layer(f"{block}.mlp_norm", f"{block}.norm2")
        yield from layer(f"{block}.mlp.expand", f"{block}.mlp_channels.fc1")
        yield from layer(f"{block}.mlp.contract", f"{block}.mlp_channels.fc2")
    yield from layer("norm", "norm")
    yield from layer("head", "head")


TABLES = {"mlp_mixer": entries}
NAMES = {
    "mixer_s32_224": "mixer_s32",
    "mixer_s16_224": "mixer_s16",
    "mixer_b32_224": "mixer_b32",
    "mixer_b16_224": "mixer_b16",
    "mixer_l32_224": "mixer_l32",
    "mixer_l16_224": "mixer_l16",
}
