"""Load published CLIPs of transformers and open_clip, with their vocabulary and preprocessing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vitrail.core.errors import CheckpointError
from vitrail.data.preprocessing import Preprocessing
from vitrail.data.text.clip_subwords import (
    MERGES_FILE,
    NUMBERS_FILE,
    TOKENIZER_FILE,
    CLIPSubwords,
    from_published,
)
from vitrail.data.text.subwords import vocabulary_to_files
from vitrail.data.text_preprocessing import ImageTextPreprocessing
from vitrail.models.checkpoint import LoadedModel
from vitrail.models.clip import MLP_RATIO, NORM_EPS, CLIPConfig
from vitrail.models.weights.conversion import convert_to
from vitrail.models.weights.files import WEIGHT_FILES, hub_file, hub_settings, read_state
from vitrail.models.weights.preparation import (
    assemble,
    config_like_ours,
    nearest_variant,
    transformers_preprocessing,
)

MODEL_TYPE = "clip"
OPEN_CLIP_FILE = "open_clip_config.json"
OPEN_CLIP_WEIGHTS = ("open_clip_model.safetensors", "open_clip_pytorch_model.bin", *WEIGHT_FILES)
CLIP_MEAN, CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
HEAD_WIDTH = 64  # of open_clip's image towers unless stated
MAX_LENGTH, VOCABULARY_SIZE = 77, 49_408  # likewise, and of transformers
ANY_VARIANT = "clip_b32"  # whose settings are all replaced
VARIED = {"name", "begin_id", "end_id", "pad_id", "activation", "vocabulary_size", "max_length"}
"""Settings in which models of one variant may differ."""
ACTIVATIONS = ("quick_gelu", "gelu")
DEFAULTS = {  # what transformers omits from a file
    "num_hidden_layers": 12,
    "hidden_act": "quick_gelu",
    "layer_norm_eps": NORM_EPS,
}
VISION_DEFAULTS = {
    **DEFAULTS,
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_attention_heads": 12,
    "image_size": 224,
    "patch_size": 32,
}
TEXT_DEFAULTS = {
    **DEFAULTS,
    "hidden_size": 512,
    "intermediate_size": 2048,
    "num_attention_heads": 8,
    "max_position_embeddings": MAX_LENGTH,
    "vocab_size": VOCABULARY_SIZE,
}


def load_clip(repository: str, settings: Mapping[str, Any]) -> LoadedModel:
    """Load a CLIP of transformers from its ``config.json`` and repository (as for ``hub_file``).

    Raises:
        CheckpointError: the files cannot be had, do not belong together, or are of a model unlike ours.
    """
    config = to_config(settings, origin=repository)
    preprocessing = transformers_preprocessing(hub_settings(repository, "preprocessor_config.json"))
    return _assemble(repository, config, "hf", WEIGHT_FILES, preprocessing)


def load_open_clip(repository: str, settings: Mapping[str, Any]) -> LoadedModel:
    """Load a CLIP of open_clip from its ``open_clip_config.json`` and repository (as for ``hub_file``).

    Raises:
        CheckpointError: as ``load_clip``.
    """
    config = _open_clip_config(settings["model_cfg"], repository)
    said = settings.get("preprocess_cfg") or {}
    tree = {
        "image_size": config.image_size,
        "resize": "squash" if said.get("resize_mode") == "squash" else "crop",
        "mean": said.get("mean") or CLIP_MEAN,
        "std": said.get("std") or CLIP_STD,
        "interpolation": said.get("interpolation") or "bicubic",
    }
    preprocessing = Preprocessing.from_tree(tree)
    return _assemble(repository, config, "open_clip", OPEN_CLIP_WEIGHTS, preprocessing)


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
    return _build_config(
        origin,
        faults,
        {
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
            "activation": vision["hidden_act"],
        },
    )


def _open_clip_config(settings: Mapping[str, Any], repository: str) -> CLIPConfig:
    vision, text = settings["vision_cfg"], settings["text_cfg"]
    faults = [
        f"{name} is {part[name]!r}"
        for part in (vision, text)
        for name in ("timm_model_name", "hf_model_name", "pool_type", "attentional_pool", "ls_init_value")
        if part.get(name) not in (None, False, "tok", "argmax")
    ]
    if not isinstance(vision.get("layers"), int):
        faults.append("its image tower is a residual network")
    if vision.get("mlp_ratio", MLP_RATIO) != MLP_RATIO:
        faults.append(f"mlp_ratio is {vision['mlp_ratio']}")
    try:
        tree = {
            "image_size": vision["image_size"],
            "embedding_dim": settings["embed_dim"],
            "patch_size": vision["patch_size"],
            "image_width": vision["width"],
            "image_depth": vision["layers"],
            "image_num_heads": vision["width"] // vision.get("head_width", HEAD_WIDTH),
            "text_width": text["width"],
            "text_depth": text["layers"],
            "text_num_heads": text["heads"],
            "max_length": text.get("context_length", MAX_LENGTH),
            "vocabulary_size": text.get("vocab_size", VOCABULARY_SIZE),
            "activation": "quick_gelu" if settings.get("quick_gelu") else "gelu",
        }
    except KeyError as error:
        tree = {}
        faults.append(f"it lacks {error}")
    return _build_config(repository, faults, tree)


def _build_config(origin: str, faults: list[str], tree: dict[str, Any]) -> CLIPConfig:
    size = tree.get("vocabulary_size", 0)
    tree |= {"begin_id": size - 2, "end_id": size - 1}
    return config_like_ours(CLIPConfig, tree, faults, origin, "two Transformers as of Radford et al. 2021")


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
    state = read_state(hub_file(repository, weight_files))
    return assemble(
        nearest_variant(settled, CLIPConfig.model_fields.keys() - VARIED, ANY_VARIANT),
        settled,
        convert_to(state, source=source, config=settled),
        ImageTextPreprocessing(**preprocessing.model_dump(), lower_case=True),
        [],
        about={"origin": f"hf:{repository}"},
        files=vocabulary_to_files(subwords),
    )


def _read_subwords(repository: str) -> CLIPSubwords:
    found = hub_file(repository, (TOKENIZER_FILE, NUMBERS_FILE))
    files = {found.name: found.read_bytes()}
    if found.name == NUMBERS_FILE:
        files[MERGES_FILE] = hub_file(repository, (MERGES_FILE,)).read_bytes()
    return from_published(files)
