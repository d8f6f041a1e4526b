"""Load published DETRs, of transformers or of the authors, with preprocessing and class names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from vitrail.data.box_preprocessing import BoxPreprocessing
from vitrail.models.checkpoint import LoadedModel
from vitrail.models.contract import DetectionModelConfig, ModelConfig
from vitrail.models.detr import DETRConfig
from vitrail.models.weights.conversion import convert_to, fit_config, rename
from vitrail.models.weights.files import WEIGHT_FILES, hub_file, hub_settings, read_state
from vitrail.models.weights.layouts.hf import RENAMED
from vitrail.models.weights.preparation import (
    assemble,
    class_names,
    config_like_ours,
    faults_of,
    faults_of_sides,
    nearest_variant,
    pixels_of,
    unknown,
)

MODEL_TYPE = "detr"
SHORTEST_PX, LONGEST_PX = 800, 1333  # Carion et al. 2020, section 4
DEPTHS = {"resnet50": (3, 4, 6, 3), "resnet101": (3, 4, 23, 3)}  # of named backbones
FIXED = {  # settings of which we support one value
    "activation_function": "relu",
    "position_embedding_type": "sine",
    "num_channels": 3,
}
FIXED_OF_OWN = {  # of the library's own backbone
    "model_type": "resnet",
    "layer_type": "bottleneck",
    "hidden_act": "relu",
    "downsample_in_first_stage": False,
    "downsample_in_bottleneck": False,
}


def load_detector(repository: str, settings: Mapping[str, Any]) -> LoadedModel:
    """Load a DETR of transformers from its ``config.json`` and repository (as for ``hub_file``).

    Raises:
        CheckpointError: the files cannot be had, or are of a model unlike ours.
    """
    config = to_config(settings, origin=repository)
    state = rename(read_state(hub_file(repository, WEIGHT_FILES)), RENAMED[MODEL_TYPE])
    preprocessing = read_preprocessing(hub_settings(repository, "preprocessor_config.json"))
    fitted = fit_config(state, source="hf", config=config)
    fitted = fitted.with_changes({"image_size": preprocessing.image_size})
    converted = convert_to(state, source="hf", config=fitted)
    name = nearest_variant(config, {"backbone_depths", "dilated"}, "detr_r50")
    return assemble_detector(name, fitted, converted, preprocessing, settings, origin=f"hf:{repository}")


def to_config(settings: Mapping[str, Any], *, origin: str) -> DETRConfig:
    """Convert a ``config.json`` to our settings.

    Raises:
        CheckpointError: we have no such model.
    """
    faults = faults_of(settings, FIXED) + faults_of_sides(settings)
    backbone = settings.get("backbone_config") or {}
    changes: dict[str, Any] = {}
    if "depths" in backbone:
        faults += faults_of(backbone, FIXED_OF_OWN)
        changes = {"backbone_depths": backbone["depths"], "backbone_width": backbone["embedding_size"]}
    else:
        name = str(settings.get("backbone") or backbone.get("backbone") or "resnet50").partition(".")[0]
        if name in DEPTHS:
            changes = {"backbone_depths": DEPTHS[name]}
        else:
            faults.append(f"its backbone is {name!r}, not one of {', '.join(DEPTHS)}")
    labels = settings.get("id2label")
    tree = {
        "num_classes": len(labels) if labels else settings.get("num_labels", 2),  # transformers' default
        "num_queries": settings.get("num_queries", 100),
        "dilated": bool(settings.get("dilation", False)),
        "width": settings.get("d_model", 256),
        "hidden_dim": settings.get("encoder_ffn_dim", 2048),
        "num_heads": settings.get("encoder_attention_heads", 8),
        "encoder_depth": settings.get("encoder_layers", 6),
        "decoder_depth": settings.get("decoder_layers", 6),
        "dropout": settings.get("dropout", 0.1),
        **changes,
    }
    expected = "a post-norm Transformer, equally wide in encoder and decoder, over a ResNet of bottlenecks"
    return config_like_ours(DETRConfig, tree, faults, origin, expected)


def read_preprocessing(settings: Mapping[str, Any]) -> BoxPreprocessing:
    """Read a detector's ``preprocessor_config.json``; missing settings are as in the paper.

    Raises:
        CheckpointError: it asks for a preprocessing that we do not have.
    """
    size = settings.get("size", SHORTEST_PX)
    if isinstance(size, int):  # files of before 2023
        size = {"shortest_edge": size, "longest_edge": settings.get("max_size", LONGEST_PX)}
    if "shortest_edge" not in size:
        raise unknown("size", size, "a shortest_edge with a longest_edge")
    image_size = (size["shortest_edge"], size.get("longest_edge") or LONGEST_PX)
    tree = {"image_size": image_size, "resize": "shortest", **pixels_of(settings)}
    return BoxPreprocessing.from_tree(tree)


def assemble_detector(
    name: str,
    config: ModelConfig,
    state: Mapping[str, Tensor],
    preprocessing: BoxPreprocessing,
    settings: Mapping[str, Any],
    *,
    origin: str,
) -> LoadedModel:
    """Build a detector from converted weights and the ``config.json``, if there is one."""
    assert isinstance(config, DetectionModelConfig)
    names = class_names(settings, config.num_classes)
    # The class numbers of the model are the ids of COCO, gaps and all.
    about = {"origin": origin, "class_ids": list(range(config.num_classes))}
    return assemble(name, config, state, preprocessing, names, about=about)
