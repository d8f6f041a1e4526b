"""What surrounds published weights: preprocessing, class names, and settings that we do not have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from torch import Tensor

from vitrail import __version__
from vitrail.core.config import Config
from vitrail.core.errors import CheckpointError, ConfigError
from vitrail.data.preprocessing import Preprocessing
from vitrail.models import MODELS
from vitrail.models.checkpoint import LoadedModel
from vitrail.models.contract import ModelConfig
from vitrail.models.weights.layouts.torchvision import PublishedFile

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
PILLOW_FILTERS = {2: "bilinear", 3: "bicubic"}
M = TypeVar("M", bound=ModelConfig)


def timm_preprocessing(settings: Mapping[str, Any]) -> Preprocessing:
    """Read the ``pretrained_cfg`` of a timm model's ``config.json``.

    Raises:
        CheckpointError: it asks for a preprocessing that we do not have.
    """
    mode = settings.get("crop_mode") or "center"
    if mode not in ("center", "squash"):
        raise unknown("crop_mode", mode, "center or squash")
    interpolation = settings.get("interpolation") or "bicubic"
    if interpolation not in PILLOW_FILTERS.values():
        raise unknown("interpolation", interpolation, "bicubic or bilinear")
    return Preprocessing.from_tree(
        {
            "image_size": settings.get("input_size", (3, 224, 224))[1:],
            "resize": "crop" if mode == "center" else "squash",
            "crop_fraction": settings.get("crop_pct") or 1.0,
            "mean": settings.get("mean", IMAGENET_MEAN),
            "std": settings.get("std", IMAGENET_STD),
            "interpolation": interpolation,
        }
    )


def transformers_preprocessing(settings: Mapping[str, Any]) -> Preprocessing:
    """Read a ``preprocessor_config.json``.

    Raises:
        CheckpointError: it asks for a preprocessing that we do not have.
    """
    size, crop = _as_sizes(settings.get("size", 224)), _as_sizes(settings.get("crop_size", {}))
    target = crop if settings.get("do_center_crop") and "height" in crop else size
    fraction = 1.0
    if "shortest_edge" in size:
        edge = size["shortest_edge"]
        side = target.get("height", edge)
        target = {"height": side, "width": target.get("width", edge)}
        fraction = settings.get("crop_pct") or min(1.0, side / edge)
    elif target is crop:
        fraction = min(1.0, crop["height"] / size["height"])
    tree = {"image_size": (target["height"], target["width"]), "crop_fraction": fraction}
    resize = "crop" if "shortest_edge" in size else "squash"
    return Preprocessing.from_tree({**tree, "resize": resize, **pixels_of(settings)})


def pixels_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a ``preprocessor_config.json`` says of pixels: their statistics and interpolation."""
    filter_number = settings.get("resample", 2)
    if filter_number not in PILLOW_FILTERS:
        raise unknown("resample", filter_number, "2 (bilinear) or 3 (bicubic)")
    return {
        "mean": settings.get("image_mean") or IMAGENET_MEAN,
        "std": settings.get("image_std") or IMAGENET_STD,
        "interpolation": PILLOW_FILTERS[filter_number],
    }


def torchvision_preprocessing(file: PublishedFile) -> Preprocessing:
    """Return the preprocessing that torchvision evaluated a weight file with."""
    return Preprocessing(
        image_size=(file.crop_px, file.crop_px),
        crop_fraction=file.crop_px / file.resize_px,
        mean=IMAGENET_MEAN,
        std=IMAGENET_STD,
        interpolation=file.interpolation,
    )


def assumed_preprocessing(source: str, image_size: tuple[int, int]) -> Preprocessing:
    """Return the usual preprocessing for weights without any: ImageNet's statistics, or -1 to 1 for JAX."""
    if source == "jax":  # Dosovitskiy et al. 2021, published code: pixels are scaled to -1..1
        return Preprocessing(image_size=image_size, interpolation="bilinear")
    return Preprocessing(image_size=image_size, crop_fraction=0.875, mean=IMAGENET_MEAN, std=IMAGENET_STD)


def class_names(settings: Mapping[str, Any], num_classes: int) -> list[str]:
    """Return the class names of a ``config.json``, or their numbers if it has none."""
    labels = settings.get("id2label")
    if isinstance(labels, Mapping) and len(labels) == num_classes:
        return [str(labels[key]) for key in sorted(labels, key=int)]
    names = settings.get("label_names")
    if isinstance(names, list) and len(names) == num_classes:
        described = settings.get("label_descriptions") or {}
        return [str(described.get(name, name)) for name in names]
    return [str(number) for number in range(num_classes)]


def assemble(
    name: str,
    config: ModelConfig,
    state: Mapping[str, Tensor],
    preprocessing: Config,
    class_names: list[str],
    *,
    about: Mapping[str, Any],
    files: Mapping[str, bytes] | None = None,
) -> LoadedModel:
    """Build a model with converted weights, and gather what belongs to it, as ``LoadedModel`` has it."""
    config = config.model_copy(update={"name": name})
    model = config.build()
    model.load_state_dict(state)
    return LoadedModel(
        model.eval(),
        config.model_dump(mode="json"),
        preprocessing.model_dump(mode="json"),
        class_names,
        {**about, "vitrail": __version__},
        files or {},
    )


def faults_of(settings: Mapping[str, Any], fixed: Mapping[str, Any]) -> list[str]:
    """Return in which settings a ``config.json`` differs from the only values that we have."""
    return [
        f"{name} is {settings[name]!r}, not {value!r}"
        for name, value in fixed.items()
        if settings.get(name, value) != value
    ]


def faults_of_sides(settings: Mapping[str, Any]) -> list[str]:
    """Return in which settings encoder and decoder of a ``config.json`` differ, though ours may not."""
    faults = []
    for name in ("attention_heads", "ffn_dim"):
        encoder, decoder = settings.get(f"encoder_{name}"), settings.get(f"decoder_{name}")
        if encoder != decoder:
            faults.append(f"encoder and decoder have {encoder} and {decoder} as {name}")
    return faults


def config_like_ours(
    family: type[M], tree: Mapping[str, Any], faults: list[str], origin: str, expected: str
) -> M:
    """Return the settings of a published model; CheckpointError if they have faults, or are unlike ours."""
    if not faults:
        try:
            return family.from_tree(tree)
        except ConfigError as error:
            faults = [error.given]
    raise CheckpointError(
        f"{origin} is a {family.family} unlike ours: {'; '.join(faults)}",
        expected=expected,
        remedy="Choose another model; vitrail models lists what we have",
    )


def nearest_variant(config: ModelConfig, fields: set[str], otherwise: str) -> str:
    """Return the first variant that agrees in some fields; it only names the model."""
    wanted = config.model_dump(include=fields)
    variants = (each for each in MODELS.values() if type(each) is type(config))
    return next((each.name for each in variants if each.model_dump(include=fields) == wanted), otherwise)


def _as_sizes(value: Any) -> dict[str, int]:
    if isinstance(value, int):
        return {"height": value, "width": value}
    return {key: int(length) for key, length in dict(value).items()}


def unknown(field: str, value: Any, expected: str) -> CheckpointError:
    """Return the error for a preprocessing that we do not have."""
    return CheckpointError(
        f"the weights were tested with {field} {value!r}",
        expected=expected,
        remedy="Convert the weights alone with file:, and choose the preparation yourself",
    )
