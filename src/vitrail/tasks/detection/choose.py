"""Choose an experiment for images with boxes, and say why.

The constants were measured on validation parts; ``docs/log.md`` has the experiments.
"""

from __future__ import annotations

import math

import numpy as np

from vitrail.core.errors import DataError
from vitrail.models.checkpoint import LoadedModel
from vitrail.tasks.contract import CACHE_SHARE, Choice, ModelRequest, name_of_weights, precision_reason
from vitrail.tasks.detection.dataset import BoxDataset
from vitrail.tasks.detection.settings import BoxAugmentSettings, BoxDataSettings, DetectionExperiment
from vitrail.train.machine import Machine
from vitrail.train.settings import OptimSettings, TrainSettings

CPU_PX, GPU_PX = 320, 640  # of the longer side
SIZE_MULTIPLE = 32  # the coarsest feature map of a detector has one position for so many pixels
CPU_BATCH, GPU_BATCH = 8, 16
QUERIES_PER_BOX = 1.5  # of the fullest image, so that a set of predictions has room for all of its boxes
MIN_QUERIES = 100
AUGMENT = BoxAugmentSettings(flip=True, crop=0.4, colour=0.2)


def choose(
    dataset: BoxDataset,
    machine: Machine,
    request: ModelRequest,
    *,
    pretrained: LoadedModel | None = None,
) -> tuple[DetectionExperiment, list[Choice]]:
    """Return an experiment with one step to go, and every choice in it with its reason.

    Args:
        machine: where it is trained.
        request: what the user asks of the model.
        pretrained: what the training starts from; its model is taken.

    Raises:
        ConfigError: there is no model of that name, or the weights are another model's.
        DataError: no size of a training image is known.
    """
    is_cpu = machine.device.type == "cpu"
    name, reason = _choose_model(request.name, pretrained, is_cpu=is_cpu)
    image_size, size_reason = _choose_size(dataset, pretrained, is_cpu=is_cpu)
    fullest = max((len(labels) for labels in dataset.train.labels), default=0)
    queries = max(MIN_QUERIES, math.ceil(QUERIES_PER_BOX * fullest))
    if pretrained is None:
        config = request.configure(name, num_classes=len(dataset.class_names), num_queries=queries)
    else:
        config = pretrained.config.with_changes({"num_classes": len(dataset.class_names)})
    optim = OptimSettings(name="muon", learning_rate=1e-3, matrix_learning_rate=0.02, betas=(0.9, 0.99))
    optim_reason = "fits small models in fewer steps than AdamW"
    if pretrained is not None:
        optim = OptimSettings(name="adamw", learning_rate=1e-4)
        optim_reason = "fine-tuning changes learned weights little"
    train, train_choices = _choose_training(dataset, machine, image_size)
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
        Choice("model.num_queries", str(config.num_queries), f"the fullest image has {fullest} boxes"),
        *train_choices,
        Choice("optim.name", experiment.optim.name, optim_reason),
        Choice("augment.flip", "true", "flipping does not change the class"),
        Choice("augment.crop", f"{AUGMENT.crop:g}", "few images: each is seen at many sizes and positions"),
    ]


def _choose_model(model: str | None, pretrained: LoadedModel | None, *, is_cpu: bool) -> tuple[str, str]:
    if pretrained is not None:
        return name_of_weights(pretrained, model), "the model of the weights"
    if model is not None:
        return model, "you asked for it"
    if is_cpu:
        return "sdetr_nano", "on a CPU: the detector that learns from few images in minutes"
    return "sdetr_small", "on a GPU: the small detector"


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
    fitted = tuple(
        max(SIZE_MULTIPLE, SIZE_MULTIPLE * round(side * scale / SIZE_MULTIPLE)) for side in (height, width)
    )
    reason = "the size of the images" if scale == 1 else f"the images are {height}x{width}; smaller is faster"
    return (fitted[0], fitted[1]), reason


def _choose_training(
    dataset: BoxDataset, machine: Machine, image_size: tuple[int, int]
) -> tuple[TrainSettings, list[Choice]]:
    is_cpu = machine.device.type == "cpu"
    batch_size = CPU_BATCH if is_cpu else GPU_BATCH
    pixels = len(dataset.train) * 3 * math.prod(image_size)
    cache = pixels <= CACHE_SHARE * machine.free_memory_bytes
    workers = 0 if cache and is_cpu else min(8, machine.num_cores)
    train = TrainSettings(
        steps=1,
        batch_size=batch_size,
        precision=machine.precision,
        num_workers=workers,
        cache=cache,
    )
    return train, [
        Choice("train.batch_size", str(batch_size), f"images of a step on {machine.device_name}"),
        Choice("train.precision", machine.precision, precision_reason(machine.precision)),
        Choice(
            "train.cache",
            str(cache).lower(),
            f"{pixels / 2**20:.0f} MiB of pixels {'fit into' if cache else 'are too much for'} memory",
        ),
    ]
