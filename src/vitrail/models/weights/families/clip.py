"""CLIP: key tables for OpenAI, open_clip and transformers; loading with vocabulary and preprocessing."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from vitrail import __version__
from vitrail.core.errors import CheckpointError, ConfigError
from vitrail.data.preprocessing import Preprocessing
from vitrail.data.text.clip_subwords import (
    MERGES_FILE,
    NUMBERS_FILE,
    TOKENIZER_FILE,
    CLIPSubwords,
    from_published,
    to_files,
)
from vitrail.data.text_preprocessing import ImageTextPreprocessing
from vitrail.models import MODELS
from vitrail.models.checkpoint import LoadedModel
from vitrail.models.clip import MLP_RATIO, NORM_EPS, CLIPConfig
from vitrail.models.weights.conversion import convert_to
from vitrail.models.weights.files import WEIGHT_FILES, hub_file, read_state
from vitrail.models.weights.preparation import transformers_preprocessing
from vitrail.models.weights.table import Entry, joined_layers, layer, rows, same


def _openai_clip(config: CLIPConfig, *, text: str = "") -> Iterator[Entry]:
    """Map every tensor of a CLIP with a Vision Transformer.

    Args:
        text: name prefix of the text tower's tensors.

    Raises:
        ConfigError: the model has another image tower.
    """
    _refuse_other_towers(config)
    yield rows("image.prefix", ["visual.class_embedding"], to_theirs=(config.image_width,))
    yield same("image.positions.table", "visual.positional_embedding")
    yield same("image.stem.weight", "visual.conv1.weight")
    yield from layer("image.input_norm", "visual.ln_pre")
    yield from _openai_blocks("image", "visual.", config.image_depth)
    yield from layer("image.norm", "visual.ln_post")
    yield _transposed("image.head.weight", "visual.proj")
    yield same("text.table.weight", f"{text}token_embedding.weight")
    yield same("text.positions.table", f"{text}positional_embedding")
    yield from _openai_blocks("text", text, config.text_depth)
    yield from layer("text.norm", f"{text}ln_final")
    yield _transposed("text.projection.weight", f"{text}text_projection")
    yield same("logit_scale", "logit_scale")


def _transposed(ours: str, theirs: str) -> Entry:
    return Entry(
        (ours,), (theirs,), lambda tensors: [tensors[0].mT], lambda tensors: [tensors[0].mT.contiguous()]
    )


def _refuse_other_towers(config: CLIPConfig) -> None:
    """Raise ConfigError unless the image tower is CLIP's own."""
    if config.image_model is not None:
        raise ConfigError(
            f"published weights were to be related to a CLIP whose image tower is {config.image_model}",
            expected="image_model null, CLIP's own Vision Transformer",
            remedy="Name a published model, such as clip_b32",
        )


def _openai_ignored(config: CLIPConfig) -> tuple[str, ...]:
    """Yield the hyper-parameters that the published checkpoints store beside the weights."""
    return "input_resolution", "context_length", "vocab_size"


def _openai_blocks(ours: str, theirs: str, depth: int) -> Iterator[Entry]:
    for index in range(depth):
        block, published = f"{ours}.blocks.{index}", f"{theirs}transformer.resblocks.{index}"
        yield from layer(f"{block}.mixer_norm", f"{published}.ln_1")
        for name in ("weight", "bias"):
            yield same(f"{block}.mixer.qkv.{name}", f"{published}.attn.in_proj_{name}")
        yield from layer(f"{block}.mixer.projection", f"{published}.attn.out_proj")
        yield from layer(f"{block}.mlp_norm", f"{published}.ln_2")
        yield from layer(f"{block}.mlp.expand", f"{published}.mlp.c_fc")
        yield from layer(f"{block}.mlp.contract", f"{published}.mlp.c_proj")


def _open_clip_named_text(config: CLIPConfig) -> Iterator[Entry]:
    """Map every tensor of a ``CustomTextCLIP``."""
    yield from _openai_clip(config, text="text.")


def _open_clip_ignored(config: CLIPConfig) -> tuple[str, ...]:
    """Yield the causal masks, which are computed."""
    return "attn_mask", "text.attn_mask"


ACTIVATIONS = ("quick_gelu", "gelu")
VISION_DEFAULTS = {  # what the library omits from a file
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


def _hf_clip(config: CLIPConfig) -> Iterator[Entry]:
    """Map every tensor of a model.

    Raises:
        ConfigError: transformers does not have the model's image tower.
    """
    _refuse_other_towers(config)
    vision, text = "vision_model", "text_model"
    yield rows("image.prefix", [f"{vision}.embeddings.class_embedding"], to_theirs=(config.image_width,))
    yield same("image.positions.table", f"{vision}.embeddings.position_embedding.weight")
    yield same("image.stem.weight", f"{vision}.embeddings.patch_embedding.weight")
    yield from layer("image.input_norm", f"{vision}.pre_layrnorm")  # as it is spelt there
    yield from _hf_blocks("image", vision, config.image_depth)
    yield from layer("image.norm", f"{vision}.post_layernorm")
    yield same("image.head.weight", "visual_projection.weight")
    yield same("text.table.weight", f"{text}.embeddings.token_embedding.weight")
    yield same("text.positions.table", f"{text}.embeddings.position_embedding.weight")
    yield from _hf_blocks("text", text, config.text_depth)
    yield from layer("text.norm", f"{text}.final_layer_norm")
    yield same("text.projection.weight", "text_projection.weight")
    yield same("logit_scale", "logit_scale")


def _hf_ignored(config: CLIPConfig) -> tuple[str, ...]:
    """Yield the position indices that older files hold."""
    return tuple(f"{tower}_model.embeddings.position_ids" for tower in ("vision", "text"))


def to_config(settings: Mapping[str, Any], *, origin: str) -> CLIPConfig:
    """Convert a ``config.json`` to our settings; the vocabulary decides the ids of begin and end.

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


def _hf_blocks(ours: str, theirs: str, depth: int) -> Iterator[Entry]:
    for index in range(depth):
        block, published = f"{ours}.blocks.{index}", f"{theirs}.encoder.layers.{index}"
        parts = [f"{published}.self_attn.{part}_proj" for part in "qkv"]
        yield from layer(f"{block}.mixer_norm", f"{published}.layer_norm1")
        yield from joined_layers(f"{block}.mixer.qkv", parts)
        yield from layer(f"{block}.mixer.projection", f"{published}.self_attn.out_proj")
        yield from layer(f"{block}.mlp_norm", f"{published}.layer_norm2")
        yield from layer(f"{block}.mlp.expand", f"{published}.mlp.fc1")
        yield from layer(f"{block}.mlp.contract", f"{published}.mlp.fc2")


MODEL_TYPE = "clip"
OPEN_CLIP_FILE = "open_clip_config.json"
OPEN_CLIP_WEIGHTS = ("open_clip_model.safetensors", "open_clip_pytorch_model.bin", *WEIGHT_FILES)
CLIP_MEAN, CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
HEAD_WIDTH = 64  # of open_clip's image towers unless stated
ANY_VARIANT = "clip_b32"  # whose settings are all replaced


def load_clip(repository: str, settings: Mapping[str, Any]) -> LoadedModel:
    """Load a CLIP of transformers from its ``config.json`` and repository (as for ``hub_file``).

    Raises:
        CheckpointError: the files cannot be had, do not belong together, or are of a model unlike ours.
    """
    config = to_config(settings, origin=repository)
    prepared = json.loads(hub_file(repository, ("preprocessor_config.json",)).read_text(encoding="utf-8"))
    preprocessing = transformers_preprocessing(prepared)
    return _assemble(repository, config, "hf", WEIGHT_FILES, preprocessing)


def load_open_clip(repository: str, settings: Mapping[str, Any]) -> LoadedModel:
    """Load a CLIP of open_clip from its ``open_clip_config.json`` and repository (as for ``hub_file``).

    Raises:
        CheckpointError: as ``load_clip``.
    """
    config = _open_clip_config(settings["model_cfg"], repository)
    said = settings.get("preprocess_cfg") or {}
    preprocessing = Preprocessing(
        image_size=config.image_size,
        resize="squash" if said.get("resize_mode") == "squash" else "crop",
        mean=tuple(said.get("mean") or CLIP_MEAN),
        std=tuple(said.get("std") or CLIP_STD),
        interpolation=said.get("interpolation") or "bicubic",
    )
    return _assemble(repository, config, "open_clip", OPEN_CLIP_WEIGHTS, preprocessing)


def _open_clip_config(settings: Mapping[str, Any], repository: str) -> CLIPConfig:
    vision, text = settings["vision_cfg"], settings["text_cfg"]
    unlike = [
        f"{name} is {part[name]!r}"
        for part in (vision, text)
        for name in ("timm_model_name", "hf_model_name", "pool_type", "attentional_pool", "ls_init_value")
        if part.get(name) not in (None, False, "tok", "argmax")
    ]
    if not isinstance(vision.get("layers"), int):
        unlike.append("its image tower is a residual network")
    if vision.get("mlp_ratio", MLP_RATIO) != MLP_RATIO:
        unlike.append(f"mlp_ratio is {vision['mlp_ratio']}")
    if not unlike:
        try:
            return CLIPConfig.from_tree(
                {
                    "image_size": vision["image_size"],
                    "embedding_dim": settings["embed_dim"],
                    "patch_size": vision["patch_size"],
                    "image_width": vision["width"],
                    "image_depth": vision["layers"],
                    "image_num_heads": vision["width"] // vision.get("head_width", HEAD_WIDTH),
                    "text_width": text["width"],
                    "text_depth": text["layers"],
                    "text_num_heads": text["heads"],
                    "max_length": text.get("context_length", 77),
                    "vocabulary_size": text.get("vocab_size", 49_408),
                    "begin_id": text.get("vocab_size", 49_408) - 2,
                    "end_id": text.get("vocab_size", 49_408) - 1,
                    "activation": "quick_gelu" if settings.get("quick_gelu") else "gelu",
                }
            )
        except (ConfigError, KeyError) as error:
            unlike.append(str(error))
    raise CheckpointError(
        f"{repository} is a CLIP unlike ours: {'; '.join(unlike)}",
        expected="two Transformers as of Radford et al. 2021",
        remedy="Choose another model; vitrail models lists what we have",
    )


def _assemble(
    repository: str,
    config: CLIPConfig,
    source: str,
    weight_files: tuple[str, ...],
    preprocessing: Preprocessing,
) -> LoadedModel:
    subwords = _read_subwords(repository)
    if subwords.size > config.vocabulary_size:
        raise CheckpointError(
            f"the vocabulary of {repository} has {subwords.size} pieces, its table {config.vocabulary_size}",
            expected=f"weights with their own {TOKENIZER_FILE}",
            remedy="Download the repository again, all files of one revision",
        )
    ends = {"begin_id": subwords.begin_id, "end_id": subwords.end_id, "pad_id": subwords.pad_id}
    settled = config.with_changes(ends)
    model = settled.build()
    state = read_state(hub_file(repository, weight_files))
    model.load_state_dict(convert_to(state, source=source, config=settled))
    return LoadedModel(
        model.eval(),
        {"name": _nearest_variant(settled), **settled.model_dump(mode="json")},
        ImageTextPreprocessing(**preprocessing.model_dump(), lower_case=True).model_dump(mode="json"),
        [],
        {"origin": f"hf:{repository}", "vitrail": __version__},
        to_files(subwords),
    )


def _read_subwords(repository: str) -> CLIPSubwords:
    found = hub_file(repository, (TOKENIZER_FILE, NUMBERS_FILE))
    files = {found.name: found.read_bytes()}
    if found.name == NUMBERS_FILE:
        files[MERGES_FILE] = Path(hub_file(repository, (MERGES_FILE,))).read_bytes()
    return from_published(files)


def _nearest_variant(config: CLIPConfig) -> str:
    """Return the variant with the same towers, or any: all settings are stored."""
    varied = {"begin_id", "end_id", "pad_id", "activation", "vocabulary_size", "max_length"}
    wanted = config.model_dump(exclude=varied)
    names = (name for name, each in MODELS.items() if isinstance(each, CLIPConfig))
    return next((name for name in names if MODELS[name].model_dump(exclude=varied) == wanted), ANY_VARIANT)


TABLES = {
    "openai": {"clip": _openai_clip},
    "open_clip": {"clip": _openai_clip},
    "hf": {"clip": _hf_clip},
}
OTHER_TABLES = {
    "open_clip": {"clip": [_open_clip_named_text]},
}
IGNORED = {
    "openai": {"clip": _openai_ignored},
    "open_clip": {"clip": _open_clip_ignored},
    "hf": {"clip": _hf_ignored},
}
NAMES = {
    "open_clip": {  # models with QuickGELU, as our variants have it
        "ViT-B-32-quickgelu": "clip_b32",
        "ViT-B-16-quickgelu": "clip_b16",
        "ViT-L-14-quickgelu": "clip_l14",
        "ViT-L-14-336-quickgelu": "clip_l14_336",
    },
    "openai": {
        "ViT-B/32": "clip_b32",
        "ViT-B/16": "clip_b16",
        "ViT-L/14": "clip_l14",
        "ViT-L/14@336px": "clip_l14_336",
    },
    "hf": {
        "openai/clip-vit-base-patch32": "clip_b32",
        "openai/clip-vit-base-patch16": "clip_b16",
        "openai/clip-vit-large-patch14": "clip_l14",
        "openai/clip-vit-large-patch14-336": "clip_l14_336",
    },
}
