"""Tiny models of every family, as they are loaded, and images to compare them on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from making.small_models import build_shaken, shrink
from vitrail.data.box_preprocessing import BoxPreprocessing
from vitrail.data.preprocessing import Preprocessing
from vitrail.data.source import ImageSource
from vitrail.engines.export.samples import Samples
from vitrail.models.checkpoint import LoadedModel
from vitrail.models.contract import DetectionModelConfig, ImageModelConfig
from vitrail.tasks.classification.objective import ClassificationObjective
from vitrail.tasks.classification.opening import open_dataset
from vitrail.tasks.detection.objective import DetectionObjective
from vitrail.tasks.detection.samples import BoxSource

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


def photos(folder: Path, loaded: LoadedModel) -> Samples:
    """Return the images of a folder of classes, all of which are scored and calibrated with."""
    dataset = open_dataset(folder)
    preprocessing = Preprocessing.from_tree(loaded.preprocessing)
    source = ImageSource(dataset.train, preprocessing)
    task = ClassificationObjective(len(loaded.class_names), preprocessing)
    return Samples(task, source, "photos", has_labels=True, calibration=source)


def scenes(split: Any, loaded: LoadedModel) -> Samples:
    """Return images with boxes as samples of a detector."""
    config: Any = loaded.model.config
    preprocessing = BoxPreprocessing.from_tree(loaded.preprocessing)
    task = DetectionObjective(len(loaded.class_names), preprocessing, scoring=config.scoring)
    source = BoxSource(split, preprocessing)
    return Samples(task, source, "scenes", has_labels=True, calibration=source)
