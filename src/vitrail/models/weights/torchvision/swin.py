"""Swin Transformers of torchvision."""

from __future__ import annotations

from collections.abc import Iterator

from vitrail.models.swin import SwinConfig
from vitrail.models.weights.table import Entry, layer, same


def entries(config: SwinConfig) -> Iterator[Entry]:
    """Name every tensor of a model."""
    yield from frame(config)
    for ours, theirs in mixers(config):
        yield from layer(f"{ours}.qkv", f"{theirs}.qkv", bias=config.qkv_bias)
        yield same(f"{ours}.relative_bias.table", f"{theirs}.relative_position_bias_table")


def ignored(config: SwinConfig) -> Iterator[str]:
    """Name the tables of indices."""
    for _, theirs in mixers(config):
        yield f"{theirs}.relative_position_index"


def frame(config: SwinConfig) -> Iterator[Entry]:
    """Name the tensors that Swin and Swin V2 share: all but those that make the attention's weights."""
    yield from layer("stem.0", "features.0.0")
    yield from layer("stem.1.norm", "features.0.2")
    for stage in range(1, len(config.depths)):
        ours, theirs = f"stages.{stage}.downsample", f"features.{2 * stage}"
        yield from layer(f"{ours}.norm", f"{theirs}.norm")
        yield from layer(f"{ours}.reduction", f"{theirs}.reduction", bias=False)
    for ours, theirs in _blocks(config):
        yield from layer(f"{ours}.mixer_norm", f"{theirs}.norm1")
        yield from layer(f"{ours}.mixer.projection", f"{theirs}.attn.proj")
        yield from layer(f"{ours}.mlp_norm", f"{theirs}.norm2")
        yield from layer(f"{ours}.mlp.expand", f"{theirs}.mlp.0")
        yield from layer(f"{ours}.mlp.contract", f"{theirs}.mlp.3")
    yield from layer("final.norm", "norm")
    yield from layer("head", "head")


def mixers(config: SwinConfig) -> Iterator[tuple[str, str]]:
    """Name every layer of attention, ours and theirs."""
    for ours, theirs in _blocks(config):
        yield f"{ours}.mixer", f"{theirs}.attn"


def _blocks(config: SwinConfig) -> Iterator[tuple[str, str]]:
    for stage, depth in enumerate(config.depths):
        for index in range(depth):
            yield f"stages.{stage}.blocks.{index}", f"features.{2 * stage + 1}.{index}"


TABLES = {"swin": entries}
IGNORED = {"swin": ignored}
NAMES = {"swin_t": "swin_t", "swin_s": "swin_s", "swin_b": "swin_b"}
