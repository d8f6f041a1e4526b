"""DETR: key tables for the authors' files and transformers; loading with preprocessing and classes.

The backbone of transformers' files is either timm's or the library's own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from vitrail import __version__
from vitrail.core.errors import CheckpointError, ConfigError
from vitrail.data.box_preprocessing import BoxPreprocessing
from vitrail.models import MODELS
from vitrail.models.checkpoint import LoadedModel
from vitrail.models.contract import DetectionModelConfig, ModelConfig
from vitrail.models.detr import DETRConfig
from vitrail.models.weights.conversion import convert_to, fit_config, hub_names_as_in_models
from vitrail.models.weights.families.resnet import hf_convolutions, timm_convolutions
from vitrail.models.weights.files import WEIGHT_FILES, hub_file, read_state
from vitrail.models.weights.preparation import IMAGENET_MEAN, IMAGENET_STD, PILLOW_FILTERS, class_names
from vitrail.models.weights.table import Entry, batch_norm, joined_layers, kernel, layer, pointwise, same

AUTHORS_BACKBONE = "backbone.0.body"
BOX_LAYERS = (0, 2, 4)  # of our head, with activations in between


def _authors_detr(config: DETRConfig) -> Iterator[Entry]:
    for ours, convolution, norm in timm_convolutions(config.backbone):
        yield kernel(f"backbone.{ours}", f"{AUTHORS_BACKBONE}.{convolution}")
        yield from batch_norm(
            f"backbone.{ours}.norm", f"{AUTHORS_BACKBONE}.{norm}", counts=config.backbone_norm == "batch"
        )
    yield from pointwise("projection", "input_proj")
    yield same("queries", "query_embed.weight")
    for index in range(config.encoder_depth):
        ours, theirs = f"encoder.{index}", f"transformer.encoder.layers.{index}"
        yield from _authors_attention(f"{ours}.attention", f"{theirs}.self_attn")
        yield from layer(f"{ours}.attention_norm", f"{theirs}.norm1")
        yield from _authors_mlp(ours, theirs)
        yield from layer(f"{ours}.mlp_norm", f"{theirs}.norm2")
    for index in range(config.decoder_depth):
        ours, theirs = f"decoder.{index}", f"transformer.decoder.layers.{index}"
        yield from _authors_attention(f"{ours}.self_attention", f"{theirs}.self_attn")
        yield from layer(f"{ours}.self_norm", f"{theirs}.norm1")
        yield from _authors_attention(f"{ours}.cross_attention", f"{theirs}.multihead_attn")
        yield from layer(f"{ours}.cross_norm", f"{theirs}.norm2")
        yield from _authors_mlp(ours, theirs)
        yield from layer(f"{ours}.mlp_norm", f"{theirs}.norm3")
    yield from layer("decoder_norm", "transformer.decoder.norm")
    yield from layer("class_head", "class_embed")
    for index, ours_index in enumerate(BOX_LAYERS):
        yield from layer(f"box_head.{ours_index}", f"bbox_embed.layers.{index}")


def _authors_uncounted(config: DETRConfig) -> Iterator[str]:
    """Yield the batch counts, which frozen batch norms do not keep."""
    if config.backbone_norm == "frozen":
        for _, _, norm in timm_convolutions(config.backbone):
            yield f"{AUTHORS_BACKBONE}.{norm}.num_batches_tracked"


def _authors_attention(ours: str, theirs: str) -> Iterator[Entry]:
    for name in ("weight", "bias"):
        yield same(f"{ours}.qkv.{name}", f"{theirs}.in_proj_{name}")
    yield from layer(f"{ours}.projection", f"{theirs}.out_proj")


def _authors_mlp(ours: str, theirs: str) -> Iterator[Entry]:
    yield from layer(f"{ours}.mlp.expand", f"{theirs}.linear1")
    yield from layer(f"{ours}.mlp.contract", f"{theirs}.linear2")


HF_BACKBONE = "model.backbone.model"
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


def _hf_detr(config: DETRConfig) -> Iterator[Entry]:
    """Map every tensor of a model with timm's backbone."""
    for ours, convolution, norm in _timm_layers(config):
        yield kernel(ours, convolution)
        yield from batch_norm(f"{ours}.norm", norm, counts=config.backbone_norm == "batch")
    yield from _hf_rest(config)


def _hf_detr_own_backbone(config: DETRConfig) -> Iterator[Entry]:
    """Map every tensor of a model with the library's own backbone."""
    for ours, convolution, norm in _own_layers(config):
        yield kernel(ours, convolution)
        yield from batch_norm(f"{ours}.norm", norm, counts=config.backbone_norm == "batch")
    yield from _hf_rest(config)


def _hf_uncounted(config: DETRConfig) -> Iterator[str]:
    """Yield the batch counts of either layout, which frozen batch norms do not keep."""
    if config.backbone_norm == "frozen":
        for _, _, norm in (*_timm_layers(config), *_own_layers(config)):
            yield f"{norm}.num_batches_tracked"


def to_config(settings: Mapping[str, Any], *, origin: str) -> DETRConfig:
    """Convert a ``config.json`` to our settings.

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
    """Return the variant with the same backbone."""
    for name in NAMES["hf"].values():
        variant = MODELS[name]
        assert isinstance(variant, DETRConfig)
        if (variant.backbone_depths, variant.dilated) == (config.backbone_depths, config.dilated):
            return name
    return "detr_r50"


def _timm_layers(config: DETRConfig) -> Iterator[tuple[str, str, str]]:
    """Map our layers to the convolutions and norms of timm's backbone."""
    for ours, convolution, norm in timm_convolutions(config.backbone):
        yield f"backbone.{ours}", f"{HF_BACKBONE}.{convolution}", f"{HF_BACKBONE}.{norm}"


def _own_layers(config: DETRConfig) -> Iterator[tuple[str, str, str]]:
    """Map our layers to the convolutions and norms of the library's own backbone."""
    for ours, theirs in hf_convolutions(config.backbone):
        place = f"{HF_BACKBONE}.{theirs.removeprefix('resnet.')}"
        yield f"backbone.{ours}", f"{place}.convolution", f"{place}.normalization"


def _hf_rest(config: DETRConfig) -> Iterator[Entry]:
    """Map every tensor outside the backbone."""
    yield from pointwise("projection", "model.input_projection")
    yield same("queries", "model.query_position_embeddings.weight")
    for index in range(config.encoder_depth):
        ours, theirs = f"encoder.{index}", f"model.encoder.layers.{index}"
        yield from _hf_attention(f"{ours}.attention", f"{theirs}.self_attn")
        yield from layer(f"{ours}.attention_norm", f"{theirs}.self_attn_layer_norm")
        yield from _hf_mlp(ours, theirs)
    for index in range(config.decoder_depth):
        ours, theirs = f"decoder.{index}", f"model.decoder.layers.{index}"
        yield from _hf_attention(f"{ours}.self_attention", f"{theirs}.self_attn")
        yield from layer(f"{ours}.self_norm", f"{theirs}.self_attn_layer_norm")
        yield from _hf_attention(f"{ours}.cross_attention", f"{theirs}.encoder_attn")
        yield from layer(f"{ours}.cross_norm", f"{theirs}.encoder_attn_layer_norm")
        yield from _hf_mlp(ours, theirs)
    yield from layer("decoder_norm", "model.decoder.layernorm")
    yield from layer("class_head", "class_labels_classifier")
    for index, ours_index in enumerate(BOX_LAYERS):
        yield from layer(f"box_head.{ours_index}", f"bbox_predictor.layers.{index}")


def _hf_attention(ours: str, theirs: str) -> Iterator[Entry]:
    yield from joined_layers(f"{ours}.qkv", [f"{theirs}.{part}_proj" for part in "qkv"])
    yield from layer(f"{ours}.projection", f"{theirs}.o_proj")


def _hf_mlp(ours: str, theirs: str) -> Iterator[Entry]:
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


MODEL_TYPE = "detr"
HEADS = {"class_embed.weight": "detr", "class_labels_classifier.weight": "hf"}  # identify a file
SHORTEST_PX, LONGEST_PX = 800, 1333  # Carion et al. 2020, section 4


def load_detector(repository: str, settings: Mapping[str, Any]) -> LoadedModel:
    """Load a DETR of transformers from its ``config.json`` and repository (as for ``hub_file``).

    Raises:
        CheckpointError: the files cannot be had, or are of a model unlike ours.
    """
    config = to_config(settings, origin=repository)
    state = hub_names_as_in_models(read_state(hub_file(repository, WEIGHT_FILES)), MODEL_TYPE)
    prepared = json.loads(hub_file(repository, ("preprocessor_config.json",)).read_text(encoding="utf-8"))
    preprocessing = read_preprocessing(prepared)
    fitted = fit_config(state, source="hf", config=config)
    fitted = fitted.with_changes({"image_size": preprocessing.image_size})
    name = nearest_variant(config)
    return _assemble(name, fitted, state, "hf", preprocessing, settings, origin=f"hf:{repository}")


def is_detector(state: Mapping[str, Tensor], model: str | None) -> bool:
    """Return whether tensor names, or the name of the model, are those of a DETR."""
    is_named = model is not None and isinstance(MODELS[model], DetectionModelConfig)
    return is_named or any(name in state for name in HEADS)


def load_detector_file(state: Mapping[str, Tensor], model: str | None, *, origin: str) -> LoadedModel:
    """Load a DETR from a file of weights alone, with the paper's preprocessing.

    Args:
        model: the name of ours; weights alone do not show whether the last stage is dilated.
        origin: the file, for messages.

    Raises:
        ConfigError: the weights fit several models, and none is named.
        CheckpointError: they fit none, or not the named one.
    """
    source = next((HEADS[name] for name in HEADS if name in state), MODEL_TYPE)
    tensors = hub_names_as_in_models(state, MODEL_TYPE) if source == "hf" else state
    names = [model] if model else [name for name, each in MODELS.items() if each.family == MODEL_TYPE]
    fitting: dict[str, ModelConfig] = {}
    fault: CheckpointError | None = None
    for name in names:
        config = fit_config(tensors, source=source, config=MODELS[name])
        try:
            convert_to(tensors, source=source, config=config)
            fitting[name] = config
        except CheckpointError as error:
            fault = error
    if not fitting:
        assert fault is not None
        raise fault
    if len(fitting) > 1:
        raise ConfigError(
            f"the weights of {origin} fit {', '.join(fitting)}",
            expected="weights whose shapes tell the model",
            remedy="Name the model: vitrail convert --model NAME, or vitrail.load(..., model=NAME)",
        )
    ((name, config),) = fitting.items()
    return _assemble(name, config, tensors, source, read_preprocessing({}), {}, origin=origin)


def read_preprocessing(settings: Mapping[str, Any]) -> BoxPreprocessing:
    """Read a detector's ``preprocessor_config.json``; missing settings are as in the paper.

    Raises:
        CheckpointError: it asks for a preprocessing that we do not have.
    """
    size = settings.get("size", SHORTEST_PX)
    if isinstance(size, int):  # files of before 2023
        size = {"shortest_edge": size, "longest_edge": settings.get("max_size", LONGEST_PX)}
    filter_number = settings.get("resample", 2)
    if "shortest_edge" not in size or filter_number not in PILLOW_FILTERS:
        raise CheckpointError(
            f"the images of this detector were prepared with size {size} and resample {filter_number}",
            expected="a shortest_edge with a longest_edge, and resample 2 (bilinear) or 3 (bicubic)",
            remedy="Convert the weights alone with file:, and choose the preparation yourself",
        )
    return BoxPreprocessing(
        image_size=(size["shortest_edge"], size.get("longest_edge") or LONGEST_PX),
        resize="shortest",
        mean=settings.get("image_mean") or IMAGENET_MEAN,
        std=settings.get("image_std") or IMAGENET_STD,
        interpolation=PILLOW_FILTERS[filter_number],
    )


def _assemble(
    name: str,
    config: ModelConfig,
    state: Mapping[str, Tensor],
    source: str,
    preprocessing: BoxPreprocessing,
    settings: Mapping[str, Any],
    *,
    origin: str,
) -> LoadedModel:
    model, settled = config.build(), config.model_dump(mode="json")
    model.load_state_dict(convert_to(state, source=source, config=config))
    return LoadedModel(
        model.eval(),
        {"name": name, **settled},
        preprocessing.model_dump(mode="json"),
        class_names(settings, settled["num_classes"]),
        # The class numbers of the model are the ids of COCO, gaps and all.
        {"origin": origin, "vitrail": __version__, "class_ids": list(range(settled["num_classes"]))},
    )


TABLES = {
    "detr": {"detr": _authors_detr},
    "hf": {"detr": _hf_detr},
}
OTHER_TABLES = {
    "hf": {"detr": (_hf_detr_own_backbone,)},
}
IGNORED = {
    "detr": {"detr": _authors_uncounted},
    "hf": {"detr": _hf_uncounted},
}
NAMES = {
    "detr": {
        "detr_resnet50": "detr_r50",
        "detr_resnet101": "detr_r101",
        "detr_resnet50_dc5": "detr_r50_dc5",
        "detr_resnet101_dc5": "detr_r101_dc5",
    },
    "hf": {
        "facebook/detr-resnet-50": "detr_r50",
        "facebook/detr-resnet-101": "detr_r101",
        "facebook/detr-resnet-50-dc5": "detr_r50_dc5",
        "facebook/detr-resnet-101-dc5": "detr_r101_dc5",
    },
}
