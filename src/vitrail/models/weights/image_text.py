"""Published models of images and texts, with the vocabulary and the preparation that belong to them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vitrail import __version__
from vitrail.core.errors import CheckpointError, ConfigError
from vitrail.data.image_text_preprocessing import ImageTextPreprocessing
from vitrail.data.preprocessing import Preprocessing
from vitrail.data.text.clip_subwords import (
    MERGES_FILE,
    NUMBERS_FILE,
    TOKENIZER_FILE,
    CLIPSubwords,
    from_published,
    to_files,
)
from vitrail.models import MODELS
from vitrail.models.checkpoint import LoadedModel
from vitrail.models.clip import MLP_RATIO, CLIPConfig
from vitrail.models.weights.conversion import convert_to
from vitrail.models.weights.files import read_state
from vitrail.models.weights.hf import clip as hf_clip
from vitrail.models.weights.hub import WEIGHT_FILES, hub_file
from vitrail.models.weights.preparation import transformers_preprocessing

MODEL_TYPE = "clip"
OPEN_CLIP_FILE = "open_clip_config.json"
OPEN_CLIP_WEIGHTS = ("open_clip_model.safetensors", "open_clip_pytorch_model.bin", *WEIGHT_FILES)
CLIP_MEAN, CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
HEAD_WIDTH = 64  # of open_clip's image towers where nothing else is said
ANY_VARIANT = "clip_b32"  # whose settings are all replaced


def load_clip(repository: str, settings: Mapping[str, Any]) -> LoadedModel:
    """Return a published CLIP of transformers.

    Args:
        repository: as for ``hub_file``.
        settings: its ``config.json``.

    Raises:
        CheckpointError: the files cannot be had, do not belong together, or are of a model unlike ours.
    """
    config = hf_clip.to_config(settings, origin=repository)
    prepared = json.loads(hub_file(repository, ("preprocessor_config.json",)).read_text(encoding="utf-8"))
    preprocessing = transformers_preprocessing(prepared)
    return _assemble(repository, config, "hf", WEIGHT_FILES, preprocessing)


def load_open_clip(repository: str, settings: Mapping[str, Any]) -> LoadedModel:
    """Return a published CLIP of open_clip.

    Args:
        repository: as for ``hub_file``.
        settings: its ``open_clip_config.json``.

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
    """Return the name of the variant whose towers are the same, or of any, since all settings are stored."""
    varied = {"begin_id", "end_id", "pad_id", "activation", "vocabulary_size", "max_length"}
    wanted = config.model_dump(exclude=varied)
    names = (name for name, each in MODELS.items() if isinstance(each, CLIPConfig))
    return next((name for name in names if MODELS[name].model_dump(exclude=varied) == wanted), ANY_VARIANT)
