"""Published detectors with their preprocessing and classes, from the hub's folders and the authors' files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from vitrail import __version__
from vitrail.core.errors import CheckpointError, ConfigError
from vitrail.data.box_preprocessing import BoxPreprocessing
from vitrail.models import MODELS
from vitrail.models.checkpoint import LoadedModel
from vitrail.models.contract import DetectionModelConfig, ModelConfig
from vitrail.models.weights.conversion import convert_to, fit_config
from vitrail.models.weights.files import read_state
from vitrail.models.weights.hf import detr as hf_detr
from vitrail.models.weights.hf import layout as hf_layout
from vitrail.models.weights.hub import WEIGHT_FILES, hub_file
from vitrail.models.weights.preparation import IMAGENET_MEAN, IMAGENET_STD, PILLOW_FILTERS, class_names

MODEL_TYPE = "detr"
HEADS = {"class_embed.weight": "detr", "class_labels_classifier.weight": "hf"}  # by which a file is known
SHORTEST_PX, LONGEST_PX = 800, 1333  # Carion et al. 2020, section 4


def load_detector(repository: str, settings: Mapping[str, Any]) -> LoadedModel:
    """Return a published detector of transformers.

    Args:
        repository: as for ``hub_file``.
        settings: its ``config.json``.

    Raises:
        CheckpointError: the files cannot be had, or are of a model unlike ours.
    """
    config = hf_detr.to_config(settings, origin=repository)
    state = hf_layout.from_files(read_state(hub_file(repository, WEIGHT_FILES)), MODEL_TYPE)
    prepared = json.loads(hub_file(repository, ("preprocessor_config.json",)).read_text(encoding="utf-8"))
    preprocessing = read_preprocessing(prepared)
    fitted = fit_config(state, source="hf", config=config)
    fitted = fitted.with_changes({"image_size": preprocessing.image_size})
    name = hf_detr.nearest_variant(config)
    return _assemble(name, fitted, state, "hf", preprocessing, settings, origin=f"hf:{repository}")


def is_detector(state: Mapping[str, Tensor], model: str | None) -> bool:
    """Tell whether tensors of a file, by their names or by that of the model, are those of a detector."""
    is_named = model is not None and isinstance(MODELS[model], DetectionModelConfig)
    return is_named or any(name in state for name in HEADS)


def load_detector_file(state: Mapping[str, Tensor], model: str | None, *, origin: str) -> LoadedModel:
    """Return a detector of a file of weights alone, with the preparation that the paper describes.

    Args:
        state: what the file holds.
        model: the name of ours; weights alone do not say whether the last stage is dilated.
        origin: the file, for messages.

    Raises:
        ConfigError: the weights fit several models, and none is named.
        CheckpointError: they fit none, or not the named one.
    """
    source = next((HEADS[name] for name in HEADS if name in state), MODEL_TYPE)
    tensors = hf_layout.from_files(state, MODEL_TYPE) if source == "hf" else state
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
    """Read a detector's ``preprocessor_config.json``; what it leaves out is as in the paper.

    Raises:
        CheckpointError: it asks for a preparation that we do not have.
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
        # The numbers of the model's classes are the ids of COCO, gaps and all.
        {"origin": origin, "vitrail": __version__, "class_ids": list(range(settled["num_classes"]))},
    )
