"""CLIP of transformers, ``CLIPModel``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from vitrail.core.errors import CheckpointError, ConfigError
from vitrail.models.clip import MLP_RATIO, NORM_EPS, CLIPConfig
from vitrail.models.weights.openai.clip import refuse_other_towers
from vitrail.models.weights.table import Entry, joined_layers, layer, rows, same

ACTIVATIONS = ("quick_gelu", "gelu")
VISION_DEFAULTS = {  # what the library leaves out of a file
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "image_size": 224,
    "patch_size": 32,
    "hidden_act": "quick_gelu",
    "layer_norm_eps": NORM_EPS,
}
TEXT_DEFAULTS = {
    "hidden_size": 512,
    "intermediate_size": 2048,
    "num_hidden_layers": 12,
    "num_attention_heads": 8,
    "max_position_embeddings": 77,
    "vocab_size": 49_408,
    "hidden_act": "quick_gelu",
    "layer_norm_eps": NORM_EPS,
}


def entries(config: CLIPConfig) -> Iterator[Entry]:
    """Name every tensor of a model.

    Raises:
        ConfigError: the model has an image tower that the library does not have.
    """
    refuse_other_towers(config)
    vision, text = "vision_model", "text_model"
    yield rows("image.prefix", [f"{vision}.embeddings.class_embedding"], to_theirs=(config.image_width,))
    yield same("image.positions.table", f"{vision}.embeddings.position_embedding.weight")
    yield same("image.stem.weight", f"{vision}.embeddings.patch_embedding.weight")
    yield from layer("image.input_norm", f"{vision}.pre_layrnorm")  # as it is spelt there
    yield from _blocks("image", vision, config.image_depth)
    yield from layer("image.norm", f"{vision}.post_layernorm")
    yield same("image.head.weight", "visual_projection.weight")
    yield same("text.table.weight", f"{text}.embeddings.token_embedding.weight")
    yield same("text.positions.table", f"{text}.embeddings.position_embedding.weight")
    yield from _blocks("text", text, config.text_depth)
    yield from layer("text.norm", f"{text}.final_layer_norm")
    yield same("text.projection.weight", "text_projection.weight")
    yield same("logit_scale", "logit_scale")


def ignored(config: CLIPConfig) -> tuple[str, ...]:
    """Name the lists of places that older files hold."""
    return tuple(f"{tower}_model.embeddings.position_ids" for tower in ("vision", "text"))


def to_config(settings: Mapping[str, Any], *, origin: str) -> CLIPConfig:
    """Return our settings of a ``config.json``; the ids of a text's ends are the vocabulary's to say.

    Raises:
        CheckpointError: we have no such model.
    """
    vision = {**VISION_DEFAULTS, **(settings.get("vision_config") or {})}
    text = {**TEXT_DEFAULTS, **(settings.get("text_config") or {})}
    faults = [
        f"{name} has {key} {tower[key]!r}, not {value!r}"
        for name, tower in (("the image tower", vision), ("the text tower", text))
        for key, value in (
            ("intermediate_size", MLP_RATIO * tower["hidden_size"]),
            ("layer_norm_eps", NORM_EPS),
            ("hidden_act", vision["hidden_act"]),
        )
        if tower[key] != value
    ]
    if vision["hidden_act"] not in ACTIVATIONS:
        faults.append(f"hidden_act is {vision['hidden_act']!r}")
    tree = {
        "image_size": vision["image_size"],
        "embedding_dim": settings.get("projection_dim", 512),
        "patch_size": vision["patch_size"],
        "image_width": vision["hidden_size"],
        "image_depth": vision["num_hidden_layers"],
        "image_num_heads": vision["num_attention_heads"],
        "text_width": text["hidden_size"],
        "text_depth": text["num_hidden_layers"],
        "text_num_heads": text["num_attention_heads"],
        "max_length": text["max_position_embeddings"],
        "vocabulary_size": text["vocab_size"],
        "begin_id": text["vocab_size"] - 2,
        "end_id": text["vocab_size"] - 1,
        "activation": vision["hidden_act"],
    }
    if not faults:
        try:
            return CLIPConfig.from_tree(tree)
        except ConfigError as error:
            faults.append(error.given)
    raise CheckpointError(
        f"{origin} is a CLIP unlike ours: {'; '.join(faults)}",
        expected="two Transformers as of Radford et al. 2021",
        remedy="Choose another model; vitrail models lists what we have",
    )


TABLES = {"clip": entries}
IGNORED = {"clip": ignored}
NAMES = {
    "openai/clip-vit-base-patch32": "clip_b32",
    "openai/clip-vit-base-patch16": "clip_b16",
    "openai/clip-vit-large-patch14": "clip_l14",
    "openai/clip-vit-large-patch14-336": "clip_l14_336",
}


def _blocks(ours: str, theirs: str, depth: int) -> Iterator[Entry]:
    for index in range(depth):
        block, published = f"{ours}.blocks.{index}", f"{theirs}.encoder.layers.{index}"
        parts = [f"{published}.self_attn.{part}_proj" for part in "qkv"]
        yield from layer(f"{block}.mixer_norm", f"{published}.layer_norm1")
        yield from joined_layers(f"{block}.mixer.qkv", parts)
        yield from layer(f"{block}.mixer.projection", f"{published}.self_attn.out_proj")
        yield from layer(f"{block}.mlp_norm", f"{published}.layer_norm2")
        yield from layer(f"{block}.mlp.expand", f"{published}.mlp.fc1")
        yield from layer(f"{block}.mlp.contract", f"{published}.mlp.fc2")
