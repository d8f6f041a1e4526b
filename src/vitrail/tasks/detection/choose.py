"""Choose an experiment for images with boxes, and say why.

The constants were measured on validation parts; ``docs/log.md`` has the experiments.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from vitrail.core.errors import ConfigError, DataError
from vitrail.engines.loading import Start, load_start_or_encoder
from vitrail.models import MODELS
from vitrail.models.checkpoint import LoadedModel
from vitrail.models.detr import DETRConfig
from vitrail.tasks.contract import ModelRequest, choose_image_training, encoder_settings, name_model
from vitrail.tasks.detection.dataset import BoxDataset
from vitrail.tasks.detection.settings import BoxAugmentSettings, BoxDataSettings, DetectionExperiment
from vitrail.train.machine import inspect_machine
from vitrail.train.run import Choice
from vitrail.train.settings import OptimSettings

CPU_PX, GPU_PX = 320, 640  # of the longer side
SIZE_MULTIPLE = 32  # the coarsest feature map of a detector has one position for so many pixels
CPU_BATCH, GPU_BATCH = 8, 16
QUERIES_PER_BOX = 1.5  # of the fullest image, so that a set of predictions has room for all of its boxes
MIN_QUERIES = 100
AUGMENT = BoxAugmentSettings(flip=True, crop=0.4, colour=0.2)


def choose(
    dataset: BoxDataset, asked: DetectionExperiment, request: ModelRequest
) -> tuple[DetectionExperiment, list[Choice]]:
    """Return an experiment with one step to go, and every choice in it with its reason.

    Of the weights, a detector's model is used; an image model becomes the backbone.

    Raises:
        ConfigError: there is no model of that name, or the weights are another model's.
        DataError: no size of a training image is known.
    """
    machine = inspect_machine()
    start = load_start_or_encoder(asked.weights, request.get("backbone") or request.name, task="detection")
    is_cpu = machine.device.type == "cpu"
    name, reason = _choose_model(request, start, is_cpu=is_cpu)
    image_size, size_reason = _choose_size(dataset, start.whole, is_cpu=is_cpu)
    fullest = max((len(labels) for labels in dataset.train.labels), default=0)
    queries = max(MIN_QUERIES, math.ceil(QUERIES_PER_BOX * fullest))
    if start.whole is not None:
        config = start.whole.config.with_changes({"num_classes": len(dataset.class_names)})
    else:
        if asked.data.is_given("image_size"):
            image_size, size_reason = asked.data.image_size, "you asked for it"
        backbone = _backbone_of(request, name, start.encoder) | {"image_size": image_size}
        config = request.configure(
            name, num_classes=len(dataset.class_names), num_queries=queries, **backbone
        )
        if start.encoder is not None and config.backbone != backbone["backbone"]:
            raise ConfigError(
                f"the backbone {config.backbone!r} was asked for, and weights of {backbone['backbone']!r}",
                expected="weights of the same model",
                remedy="Leave out model.backbone, it follows from the weights",
            )
    num_lost = fullest - config.num_queries
    lost = f": {num_lost} of them can never be found" if num_lost > 0 else ""
    optim = OptimSettings(name="muon", learning_rate=1e-3, matrix_learning_rate=0.02, betas=(0.9, 0.99))
    optim_reason = "fits small models in fewer steps than AdamW"
    if start.whole is not None:
        optim = OptimSettings(name="adamw", learning_rate=1e-4)
        optim_reason = "fine-tuning changes learned weights little"
    elif start.encoder is not None:
        optim = OptimSettings(name="adamw", learning_rate=2e-4)
        optim_reason = "Muon's steps would undo what the backbone has learned"
    train, train_choices = choose_image_training(
        machine,
        asked.train,
        batch_size=CPU_BATCH if is_cpu else GPU_BATCH,
        num_images=len(dataset.train),
        image_size=image_size,
    )
    experiment = DetectionExperiment(
        data=BoxDataSettings(source=dataset.source, image_size=image_size),
        model=config,
        augment=AUGMENT,
        optim=optim,
        train=train,
    )
    return experiment, [
        Choice("data.image_size", "x".join(map(str, image_size)), size_reason),
        Choice("model.name", name, reason),
        *([Choice("model.backbone", config.backbone, "that of the weights")] if start.encoder else []),
        Choice(
            "model.num_queries",
            str(config.num_queries),
            f"the fullest training image has {fullest} boxes{lost}",
        ),
        *train_choices,
        Choice("optim.name", experiment.optim.name, optim_reason),
        Choice("augment.flip", "true", "flipping does not change the class"),
        Choice("augment.crop", f"{AUGMENT.crop:g}", "few images: each is seen at many sizes and positions"),
    ]


def _choose_model(request: ModelRequest, start: Start, *, is_cpu: bool) -> tuple[str, str]:
    usual = "sdetr_small", "on a GPU: the small detector"
    if is_cpu:
        usual = "sdetr_nano", "on a CPU: the detector that learns from few images in minutes"
    if start.encoder is not None and not isinstance(getattr(start.encoder.config, "channels", None), tuple):
        usual = "detr_nano", "the weights are of a backbone without feature maps of several strides"
    return name_model(start.whole, request.name, *usual)


def _backbone_of(request: ModelRequest, name: str, encoder: LoadedModel | None) -> dict[str, Any]:
    """Return the settings of a named backbone; empty if the detector has its own."""
    is_plain = isinstance(MODELS[name], DETRConfig)
    if encoder is None:  # learned from random weights, which fixed statistics would not suit
        learned = {"backbone_norm": "batch", "num_frozen": 0}
        return learned if is_plain and request.get("backbone") else {}
    backbone, changes = encoder_settings(encoder)
    settings = encoder.model_settings
    if settings["num_channels"] != 3:
        raise ConfigError(
            f"the weights are of {backbone}, for images with {settings['num_channels']} channel",
            expected="a model of colour images, as detectors read them",
            remedy="Name other weights",
        )
    changes = {**changes, "image_size": settings["image_size"]}
    found: dict[str, Any] = {"backbone": backbone, "backbone_changes": changes, "backbone_norm": "frozen"}
    return found if not is_plain or hasattr(encoder.model, "stages") else {**found, "num_frozen": 0}


def _choose_size(
    dataset: BoxDataset, pretrained: LoadedModel | None, *, is_cpu: bool
) -> tuple[tuple[int, int], str]:
    """Return the size into which images are fitted: of their usual shape, no larger than they are."""
    if pretrained is not None:
        height, width = pretrained.preprocessing["image_size"]
        return (height, width), "the size that the weights were trained with"
    sizes = dataset.train.sizes[(dataset.train.sizes > 0).all(axis=1)]
    if not len(sizes):
        raise DataError(
            f"the size of no training image of {dataset.source} is known",
            expected="images that Pillow opens",
            remedy=f"Run: vitrail check {dataset.source}",
        )
    height, width = (int(side) for side in np.median(sizes, axis=0))
    most = CPU_PX if is_cpu else GPU_PX
    scale = min(1.0, most / max(height, width))
    rows, columns = (max(1, round(side * scale / SIZE_MULTIPLE)) for side in (height, width))
    reason = "the size of the images" if scale == 1 else f"the images are {height}x{width}; smaller is faster"
    return (SIZE_MULTIPLE * rows, SIZE_MULTIPLE * columns), reason
