"""Key tables of MLP-Mixer and Sequencer2D: timm."""

from __future__ import annotations

from collections.abc import Iterator

from vitrail.models.mlp_mixer import MLPMixerConfig
from vitrail.models.sequencer2d import Sequencer2DConfig
from vitrail.models.weights.table import Entry, layer, same


def _timm_mlp_mixer(config: MLPMixerConfig) -> Iterator[Entry]:
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


def _timm_sequencer2d(config: Sequencer2DConfig) -> Iterator[Entry]:
    yield from layer("stem", "stem.proj")
    for stage, depth in enumerate(config.depths):
        if stage:
            yield from layer(f"stages.{stage}.downsample", f"stages.{stage}.downsample.down")
        for index in range(depth):
            block = f"stages.{stage}.blocks.{index}"
            yield from layer(f"{block}.mixer_norm", f"{block}.norm1")
            yield from _lstm(f"{block}.mixer.vertical", f"{block}.rnn_tokens.rnn_v")
            yield from _lstm(f"{block}.mixer.horizontal", f"{block}.rnn_tokens.rnn_h")
            yield from layer(f"{block}.mixer.projection", f"{block}.rnn_tokens.fc")
            yield from layer(f"{block}.mlp_norm", f"{block}.norm2")
            yield from layer(f"{block}.mlp.expand", f"{block}.mlp_channels.fc1")
            yield from layer(f"{block}.mlp.contract", f"{block}.mlp_channels.fc2")
    yield from layer("final.norm", "norm")
    yield from layer("head", "head.fc")


def _lstm(ours: str, theirs: str) -> Iterator[Entry]:
    for direction, suffix in (("ahead", ""), ("back", "_reverse")):
        for source, letter in (("input", "i"), ("hidden", "h")):
            yield same(f"{ours}.{direction}.{source}_weight", f"{theirs}.weight_{letter}h_l0{suffix}")
            yield same(f"{ours}.{direction}.{source}_bias", f"{theirs}.bias_{letter}h_l0{suffix}")


TABLES = {
    "timm": {"mlp_mixer": _timm_mlp_mixer, "sequencer2d": _timm_sequencer2d},
}
NAMES = {
    "timm": {
        "mixer_s32_224": "mixer_s32",
        "mixer_s16_224": "mixer_s16",
        "mixer_b32_224": "mixer_b32",
        "mixer_b16_224": "mixer_b16",
        "mixer_l32_224": "mixer_l32",
        "mixer_l16_224": "mixer_l16",
        **{name: name for name in ("sequencer2d_s", "sequencer2d_m", "sequencer2d_l")},
    },
}
