"""Vision Transformers of transformers, ``ViTForImageClassification``, and its DeiTs with two heads.

A DeiT without a distillation token is published as a ViT there.
"""

from __future__ import annotations

from collections.abc import Iterator

from vitrail.models.vit import ViTConfig
from vitrail.models.weights.table import Entry, joined_layers, layer, reshaped, rows


def entries(config: ViTConfig) -> Iterator[Entry]:
    """Name every tensor of a plain model, or of a distilled ``DeiTForImageClassificationWithTeacher``."""
    width = config.width
    model = "deit" if config.distilled else "vit"
    embeddings = f"{model}.embeddings"
    yield from layer("stem", f"{embeddings}.patch_embeddings.projection")
    prefix = [f"{embeddings}.cls_token", f"{embeddings}.distillation_token"][: config.num_prefix]
    yield rows("prefix", prefix, to_theirs=(1, 1, width))
    positions = f"{embeddings}.position_embeddings"
    yield reshaped("positions.table", positions, to_ours=(-1, width), to_theirs=(1, -1, width))
    for index in range(config.depth):
        ours, theirs = f"blocks.{index}", f"{model}.layers.{index}"
        parts = [f"{theirs}.attention.{part}_proj" for part in "qkv"]
        yield from layer(f"{ours}.mixer_norm", f"{theirs}.layernorm_before")
        yield from joined_layers(f"{ours}.mixer.qkv", parts, bias=config.qkv_bias)
        yield from layer(f"{ours}.mixer.projection", f"{theirs}.attention.o_proj")
        yield from layer(f"{ours}.mlp_norm", f"{theirs}.layernorm_after")
        yield from layer(f"{ours}.mlp.expand", f"{theirs}.mlp.fc1")
        yield from layer(f"{ours}.mlp.contract", f"{theirs}.mlp.fc2")
    yield from layer("norm", f"{model}.layernorm")
    if config.distilled:
        yield from layer("head.label", "cls_classifier")
        yield from layer("head.teacher", "distillation_classifier")
    else:
        yield from layer("head", "classifier")


TABLES = {"vit": entries}
NAMES = {
    "WinKawaks/vit-tiny-patch16-224": "vit_ti16",
    "WinKawaks/vit-small-patch16-224": "vit_s16",
    "google/vit-base-patch16-224": "vit_b16",
    "google/vit-base-patch16-384": "vit_b16",
    "google/vit-base-patch32-384": "vit_b32",
    "google/vit-large-patch16-224": "vit_l16",
    "google/vit-large-patch16-384": "vit_l16",
    "google/vit-large-patch32-384": "vit_l32",
    "facebook/deit-tiny-patch16-224": "deit_ti16",
    "facebook/deit-small-patch16-224": "deit_s16",
    "facebook/deit-base-patch16-224": "deit_b16",
    "facebook/deit-base-patch16-384": "deit_b16",
    "facebook/deit-tiny-distilled-patch16-224": "deit_ti16_distilled",
    "facebook/deit-small-distilled-patch16-224": "deit_s16_distilled",
    "facebook/deit-base-distilled-patch16-224": "deit_b16_distilled",
    "facebook/deit-base-distilled-patch16-384": "deit_b16_distilled",
}
