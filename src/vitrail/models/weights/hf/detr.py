"""DETR of transformers, ``DetrForObjectDetection``, with timm's backbone or with the library's own.

The hub's files name some tensors otherwise than the library's models; see ``layout``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from vitrail.core.errors import CheckpointError, ConfigError
from vitrail.models import MODELS
from vitrail.models.detr import DETRConfig
from vitrail.models.weights.detr.detr import BOX_LAYERS
from vitrail.models.weights.hf.resnet import convolutions as own_convolutions
from vitrail.models.weights.table import Entry, batch_norm, joined_layers, kernel, layer, pointwise, same
from vitrail.models.weights.timm.resnet import convolutions as timm_convolutions

BACKBONE = "model.backbone.model"
DEPTHS = {"resnet50": (3, 4, 6, 3), "resnet101": (3, 4, 23, 3)}  # of the backbones that are named
FIXED = {  # settings whose other values we do not have
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


def entries(config: DETRConfig) -> Iterator[Entry]:
    """Name every tensor of a model with timm's backbone."""
    for ours, convolution, norm in _timm_layers(config):
        yield kernel(ours, convolution)
        yield from batch_norm(f"{ours}.norm", norm, counts=config.backbone_norm == "batch")
    yield from _rest(config)


def own_entries(config: DETRConfig) -> Iterator[Entry]:
    """Name every tensor of a model with the library's own backbone."""
    for ours, convolution, norm in _own_layers(config):
        yield kernel(ours, convolution)
        yield from batch_norm(f"{ours}.norm", norm, counts=config.backbone_norm == "batch")
    yield from _rest(config)


def uncounted(config: DETRConfig) -> Iterator[str]:
    """Name the numbers of batches, of which a frozen norm keeps none, in either layout."""
    if config.backbone_norm == "frozen":
        for _, _, norm in (*_timm_layers(config), *_own_layers(config)):
            yield f"{norm}.num_batches_tracked"


def to_config(settings: Mapping[str, Any], *, origin: str) -> DETRConfig:
    """Return our settings of a ``config.json``.

    Raises:
        CheckpointError: we have no such model.
    """
    faults = _faults_of(settings, FIXED)
    for ours in ("attention_heads", "ffn_dim"):
        sides = [settings.get(f"{side}_{ours}") for side in ("encoder", "decoder")]
        if sides[0] != sides[1]:
            faults.append(f"encoder and decoder have {sides[0]} and {sides[1]} as {ours}")
    backbone = settings.get("backbone_config") or {}
    changes: dict[str, Any] = {}
    if "depths" in backbone:
        faults += _faults_of(backbone, FIXED_OF_OWN)
        changes = {"backbone_depths": backbone["depths"], "backbone_width": backbone["embedding_size"]}
    else:
        name = str(settings.get("backbone") or backbone.get("backbone") or "resnet50").partition(".")[0]
        if name in DEPTHS:
            changes = {"backbone_depths": DEPTHS[name]}
        else:
            faults.append(f"its backbone is {name!r}, not one of {', '.join(DEPTHS)}")
    if faults:
        raise _unlike_ours(origin, "; ".join(faults))
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
    try:
        return DETRConfig.from_tree(tree)
    except ConfigError as error:
        raise _unlike_ours(origin, error.given) from None


def nearest_variant(config: DETRConfig) -> str:
    """Return the name of ours that differs least from some settings: that of its backbone."""
    for name in NAMES.values():
        variant = MODELS[name]
        assert isinstance(variant, DETRConfig)
        if (variant.backbone_depths, variant.dilated) == (config.backbone_depths, config.dilated):
            return name
    return "detr_r50"


def _timm_layers(config: DETRConfig) -> Iterator[tuple[str, str, str]]:
    """Name our layers, and their convolutions and norms with timm's backbone."""
    for ours, convolution, norm in timm_convolutions(config.backbone):
        yield f"backbone.{ours}", f"{BACKBONE}.{convolution}", f"{BACKBONE}.{norm}"


def _own_layers(config: DETRConfig) -> Iterator[tuple[str, str, str]]:
    """Name our layers, and their convolutions and norms with the library's own backbone."""
    for ours, theirs in own_convolutions(config.backbone):
        place = f"{BACKBONE}.{theirs.removeprefix('resnet.')}"
        yield f"backbone.{ours}", f"{place}.convolution", f"{place}.normalization"


def _rest(config: DETRConfig) -> Iterator[Entry]:
    """Name every tensor but those of the backbone."""
    yield from pointwise("projection", "model.input_projection")
    yield same("queries", "model.query_position_embeddings.weight")
    for index in range(config.encoder_depth):
        ours, theirs = f"encoder.{index}", f"model.encoder.layers.{index}"
        yield from _attention(f"{ours}.attention", f"{theirs}.self_attn")
        yield from layer(f"{ours}.attention_norm", f"{theirs}.self_attn_layer_norm")
        yield from _mlp(ours, theirs)
    for index in range(config.decoder_depth):
        ours, theirs = f"decoder.{index}", f"model.decoder.layers.{index}"
        yield from _attention(f"{ours}.self_attention", f"{theirs}.self_attn")
        yield from layer(f"{ours}.self_norm", f"{theirs}.self_attn_layer_norm")
        yield from _attention(f"{ours}.cross_attention", f"{theirs}.encoder_attn")
        yield from layer(f"{ours}.cross_norm", f"{theirs}.encoder_attn_layer_norm")
        yield from _mlp(ours, theirs)
    yield from layer("decoder_norm", "model.decoder.layernorm")
    yield from layer("class_head", "class_labels_classifier")
    for index, ours_index in enumerate(BOX_LAYERS):
        yield from layer(f"box_head.{ours_index}", f"bbox_predictor.layers.{index}")


def _attention(ours: str, theirs: str) -> Iterator[Entry]:
    yield from joined_layers(f"{ours}.qkv", [f"{theirs}.{part}_proj" for part in "qkv"])
    yield from layer(f"{ours}.projection", f"{theirs}.o_proj")


def _mlp(ours: str, theirs: str) -> Iterator[Entry]:
    yield from layer(f"{ours}.mlp.expand", f"{theirs}.mlp.fc1")
    yield from layer(f"{ours}.mlp.contract", f"{theirs}.mlp.fc2")
    yield from layer(f"{ours}.mlp_norm", f"{theirs}.final_layer_norm")


def _faults_of(settings: Mapping[str, Any], fixed: Mapping[str, Any]) -> list[str]:
    return [
        f"{name} is {settings[name]!r}, not {value!r}"
        for name, value in fixed.items()
        if settings.get(name, value) != value
    ]


def _unlike_ours(origin: str, fault: str) -> CheckpointError:
    return CheckpointError(
        f"{origin} is a DETR unlike ours: {fault}",
        expected="a post-norm Transformer, equally wide in encoder and decoder, over a ResNet of bottlenecks",
        remedy="Choose another model; vitrail models lists what we have",
    )


TABLES = {"detr": entries}
OTHER_TABLES = {"detr": (own_entries,)}
IGNORED = {"detr": uncounted}
NAMES = {
    "facebook/detr-resnet-50": "detr_r50",
    "facebook/detr-resnet-101": "detr_r101",
    "facebook/detr-resnet-50-dc5": "detr_r50_dc5",
    "facebook/detr-resnet-101-dc5": "detr_r101_dc5",
}
