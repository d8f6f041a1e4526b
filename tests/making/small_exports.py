"""Small untrained models as they would be loaded, with images to run, compare and export them on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from making.small_models import DETR, build_shaken, shrink
from vitrail.data.box_preprocessing import BoxPreprocessing
from vitrail.data.preprocessing import Preprocessing
from vitrail.data.source import ImageSource
from vitrail.engines.export.comparison import ExportObjective, Samples, generate_samples
from vitrail.engines.export.package import Comparison, Package, PortSpec, digest_files
from vitrail.models import build, model_settings
from vitrail.models.checkpoint import LoadedModel
from vitrail.models.contract import DetectionModelConfig, ImageModelConfig
from vitrail.tasks.classification.opening import open_dataset
from vitrail.tasks.detection.samples import BoxSource
from vitrail.tasks.registry import task_of_model

CLASS_NAMES = ["ant", "bee", "cat", "dog", "elk"]
COLOURS = ["blue", "green", "red"]
SMALL_VIT = {
    "image_size": (24, 16),
    "patch_size": 4,
    "stem": "patch",
    "width": 96,  # so that its layers are large enough to be packed for a kernel
    "depth": 2,
    "num_heads": 3,
    "num_classes": 3,
}


def small_vit(**changes: Any) -> LoadedModel:
    """Return a classifier of three colours."""
    torch.manual_seed(3)
    fields = {**SMALL_VIT, **changes}
    preprocessing = Preprocessing(image_size=(24, 16)).model_dump(mode="json")
    model = build("vit_nano", **fields).eval()
    return LoadedModel(model, model_settings("vit_nano", **fields), preprocessing, COLOURS, {})


def small_detr() -> LoadedModel:
    """Return a detector."""
    torch.manual_seed(1)
    model = build("detr_r50", **DETR).eval()
    preprocessing = BoxPreprocessing(image_size=(48, 64)).model_dump(mode="json")
    names = [f"class {label}" for label in range(DETR["num_classes"])]
    return LoadedModel(model, model_settings("detr_r50", **DETR), preprocessing, names, {})


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


def save_loaded(folder: Path, loaded: LoadedModel) -> LoadedModel:
    """Save a model as a run would, and return it."""
    loaded.save(folder)
    return loaded


def write_package(folder: Path, loaded: LoadedModel, model_format: str, **changes: Any) -> Package:
    """Write the description of a package beside files that hold no model."""
    folder.mkdir(exist_ok=True)
    for name in {"openvino": ("model.xml", "model.bin"), "onnx": ("model.onnx",), "torch": ("model.pt2",)}[
        model_format
    ]:
        (folder / name).write_text("anything")
    is_detector, num_classes = task_of_model(loaded).name == "detection", len(loaded.class_names)
    sizes = (PortSpec(name="sizes", dtype="int64", axes=("batch", 2)),) * is_detector
    boxes = (PortSpec(name="boxes", dtype="float32", axes=("batch", 7, 4)),) * is_detector
    axes = ("batch", 7, num_classes + 1) if is_detector else ("batch", num_classes)
    package = Package(
        **{
            "task": task_of_model(loaded).name,
            "format": model_format,
            "precision": "float32",
            "model_settings": loaded.model_settings,
            "preprocessing": loaded.preprocessing,
            "class_names": tuple(loaded.class_names),
            "about": loaded.about,
            "inputs": (PortSpec(name="images", dtype="float32", axes=("batch", 3, 24, 16)), *sizes),
            "outputs": (PortSpec(name="logits", dtype="float32", axes=axes), *boxes),
            "comparison": comparison(),
            "tolerance": 1e-3,
            "files": digest_files(folder),
            **changes,
        }
    )
    package.write(folder)
    return package.model_copy(update={"folder": folder})


def comparison(**changes: Any) -> Comparison:
    """Return a comparison that found the same outputs, except for rounding."""
    fields = {
        "images": "photos",
        "num_images": 3,
        "largest_logit_difference": 1e-6,
        "mean_logit_difference": 1e-7,
        "largest_logit": 5.0,
        "top1_agreement": 1.0,
    }
    return Comparison(**{**fields, **changes})


def images_for(loaded: LoadedModel, batch: int = 5) -> Tensor:
    """Return normalised images of smooth values, of the size that a classifier takes."""
    height, width = loaded.preprocessing["image_size"]
    coarse = torch.randn(batch, 3, 5, 5, generator=torch.Generator().manual_seed(2))
    return torch.nn.functional.interpolate(coarse, (height, width), mode="bilinear")


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
