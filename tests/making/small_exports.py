"""Tiny models of every family, as they are loaded, and images to compare them on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from making.small_models import build_shaken, shrink
from vitrail.data.box_preprocessing import BoxPreprocessing
from vitrail.data.preprocessing import Preprocessing
from vitrail.data.source import ImageSource
from vitrail.engines.export.comparison import ExportObjective, Samples, generate_samples
from vitrail.models.checkpoint import LoadedModel
from vitrail.models.contract import DetectionModelConfig, ImageModelConfig
from vitrail.tasks.classification.opening import open_dataset
from vitrail.tasks.detection.samples import BoxSource
from vitrail.tasks.registry import task_of_model

CLASS_NAMES = ["ant", "bee", "cat", "dog", "elk"]


def load_small(name: str, **changes: Any) -> LoadedModel:
    """Return a random model of a name, made small, without the zeros that some layers begin with."""
    config: Any = shrink(name).with_changes(changes)
    assert isinstance(config, ImageModelConfig | DetectionModelConfig)
    torch.manual_seed(3)
    model = build_shaken(config)
    kind = BoxPreprocessing if isinstance(config, DetectionModelConfig) else Preprocessing
    preprocessing = kind(image_size=config.image_size).model_dump(mode="json")
    settings = {"name": name, **config.model_dump(mode="json")}
    return LoadedModel(model, settings, preprocessing, CLASS_NAMES[: config.num_classes], {"run": "small"})


def objective_of(loaded: LoadedModel) -> ExportObjective:
    """Return the objective of a model's task."""
    objective = task_of_model(loaded).export_objective(loaded)
    assert objective is not None
    return objective


def generated(loaded: LoadedModel, count: int = 6) -> Samples:
    """Return generated images, by default as many as three batches have."""
    return generate_samples(loaded, objective_of(loaded), count)


def photos(folder: Path, loaded: LoadedModel) -> Samples:
    """Return the images of a folder of classes, all of which are scored and calibrated with."""
    source = ImageSource(open_dataset(folder).train, Preprocessing.from_tree(loaded.preprocessing))
    return Samples(objective_of(loaded), source, "photos", has_labels=True, calibration=source)


def scenes(split: Any, loaded: LoadedModel) -> Samples:
    """Return images with boxes as samples of a detector."""
    source = BoxSource(split, BoxPreprocessing.from_tree(loaded.preprocessing))
    return Samples(objective_of(loaded), source, "scenes", has_labels=True, calibration=source)
