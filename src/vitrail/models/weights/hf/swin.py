"""Swin Transformers of transformers, in the names of its models since 5.0."""

from __future__ import annotations

from collections.abc import Iterator

from vitrail.models.swin import SwinConfig
from vitrail.models.weights.table import Entry, joined_layers, layer, same


def entries(config: SwinConfig) -> Iterator[Entry]:
    """Name every tensor of a model."""
    yield from frame(config, "swin")
    for ours, theirs in blocks(config, "swin"):
        attention = f"{theirs}.attention"
        yield from joined_layers(
            f"{ours}.mixer.qkv", [f"{attention}.{part}_proj" for part in "qkv"], bias=config.qkv_bias
        )
        yield same(
            f"{ours}.mixer.relative_bias.table",
            f"{attention}.relative_position_bias.relative_position_bias_table",
        )
        yield from layer(f"{ours}.mixer.projection", f"{attention}.o_proj")
        yield from layer(f"{ours}.mlp.expand", f"{theirs}.mlp.fc1")
        yield from layer(f"{ours}.mlp.contract", f"{theirs}.mlp.fc2")


def ignored(config: SwinConfig) -> Iterator[str]:
    """Name the tables of indices, which files hold and models do not."""
    for _, theirs in blocks(config, "swin"):
        yield f"{theirs}.attention.relative_position_bias.relative_position_index"


def frame(config: SwinConfig, model: str) -> Iterator[Entry]:
    """Name the tensors that have the same names in Swin and Swin V2."""
    yield from layer("stem.0", f"{model}.embeddings.patch_embeddings.projection")
    yield from layer("stem.1.norm", f"{model}.embeddings.norm")
    for stage in range(1, len(config.depths)):
        ours, theirs = f"stages.{stage}.downsample", f"{model}.encoder.layers.{stage - 1}.downsample"
        yield from layer(f"{ours}.norm", f"{theirs}.norm")
        yield from layer(f"{ours}.reduction", f"{theirs}.reduction", bias=False)
    for ours, theirs in blocks(config, model):
        yield from layer(f"{ours}.mixer_norm", f"{theirs}.layernorm_before")
        yield from layer(f"{ours}.mlp_norm", f"{theirs}.layernorm_after")
    yield from layer("final.norm", f"{model}.layernorm")
    yield from layer("head", "classifier")


def blocks(config: SwinConfig, model: str) -> Iterator[tuple[str, str]]:
    """Name every block, ours and theirs."""
    for stage, depth in enumerate(config.depths):
        for index in range(depth):
            yield f"stages.{stage}.blocks.{index}", f"{model}.encoder.layers.{stage}.blocks.{index}"


TABLES = {"swin": entries}
IGNORED = {"swin": ignored}
NAMES = {
    "microsoft/swin-tiny-patch4-window7-224": "swin_t",
    "microsoft/swin-small-patch4-window7-224": "swin_s",
    "microsoft/swin-base-patch4-window7-224": "swin_b",
    "microsoft/swin-base-patch4-window7-224-in22k": "swin_b",
    "microsoft/swin-base-patch4-window12-384": "swin_b_384",
    "microsoft/swin-base-patch4-window12-384-in22k": "swin_b_384",
    "microsoft/swin-large-patch4-window7-224": "swin_l",
    "microsoft/swin-large-patch4-window7-224-in22k": "swin_l",
    "microsoft/swin-large-patch4-window12-384": "swin_l_384",
    "microsoft/swin-large-patch4-window12-384-in22k": "swin_l_384",
}
