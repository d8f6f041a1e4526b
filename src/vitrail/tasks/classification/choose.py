"""Choose an experiment for a data set, machine and budget, with reasons.

The constants were measured on validation parts of training splits; ``docs/log.md`` has the experiments.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float64, Int64

from vitrail.core.errors import DataError
from vitrail.data.dataset import ImageDataset
from vitrail.data.images import decode, open_image, upright_size
from vitrail.data.preprocessing import Resize
from vitrail.data.settings import AugmentSettings
from vitrail.data.source import CROP_MARGIN
from vitrail.engines.loading import load_start
from vitrail.models import MODELS
from vitrail.models.ablations import ConvStemConfig
from vitrail.models.checkpoint import LoadedModel
from vitrail.tasks.classification.settings import (
    ClassificationExperiment,
    ClassificationSettings,
    ImageDataSettings,
)
from vitrail.tasks.contract import ModelRequest, choose_image_training, name_model
from vitrail.train.machine import Machine, inspect_machine
from vitrail.train.run import Choice
from vitrail.train.settings import OptimSettings

SMALL_PX, MEDIUM_PX = 40, 96
ACCELERATOR_PX, CPU_PX = 224, 128
FEW_IMAGES = 2_000
PROBED_IMAGES = 64  # whose sizes and colours tell what the others are like
MAX_CUT = 0.1  # of a typical image, which a centred crop may cut off
CHARACTERS = "the classes are named by characters or numbers"
ERASE_EPOCHS, CUTMIX_EPOCHS = 15, 40  # with fewer epochs, stronger augmentation costs accuracy


class Scale(NamedTuple):
    """A model and an input size that suit the images, and the cost of one image."""

    model: str
    image_size: tuple[int, int]
    patch_size: int
    reason: str


def choose(
    dataset: ImageDataset, asked: ClassificationExperiment, request: ModelRequest
) -> tuple[ClassificationExperiment, list[Choice]]:
    """Return an experiment with one step, and every choice in it with its reason."""
    machine, (sizes, is_grey) = inspect_machine(), _look_at_images(dataset)
    height, width = (int(side) for side in np.median(sizes, axis=0))
    pretrained = load_start(asked.weights, request.name, task="classification")
    scale = choose_scale((height, width), machine) if pretrained is None else scale_of(pretrained)
    name, reason = name_model(pretrained, request.name, scale.model, scale.reason)
    scale = scale._replace(model=name, reason=reason)
    if asked.data.is_given("image_size"):
        scale = scale._replace(image_size=asked.data.image_size)
    if pretrained is not None:
        size_reason = "the size that the weights were trained with"
        config = pretrained.config.with_changes({"num_classes": len(dataset.class_names)})
    else:
        size_reason = f"the images are {height}x{width}; smaller is faster"
        if scale.image_size == (height, width):
            size_reason = "the size of the images"
        changes: dict[str, Any] = {"num_classes": len(dataset.class_names)}
        usual: Any = MODELS[scale.model]
        if scale.model == "vit_micro" and usual.patch_size != scale.patch_size:
            changes["patch_size"] = scale.patch_size
            changes["stem"] = _deeper_stem(usual.stem, scale.patch_size)
        config = request.configure(scale.model, image_size=scale.image_size, **changes)
    resize, resize_reason = choose_resize(sizes[:, 1] / sizes[:, 0], scale.image_size)
    choices = [
        Choice("data.image_size", "x".join(map(str, scale.image_size)), size_reason),
        *([Choice("data.resize", resize, resize_reason)] if resize_reason else ()),
        Choice("model.name", scale.model, scale.reason),
    ]
    if hasattr(config, "patch_size"):
        patch_size = config.patch_size
        rows, columns = (math.ceil(side / patch_size) for side in scale.image_size)
        choices.append(Choice("model.patch_size", str(patch_size), f"{rows}x{columns} tokens an image"))
    batch_size = 64 if len(dataset.train) < FEW_IMAGES else 128
    cached_height, cached_width = (round(side * CROP_MARGIN) for side in scale.image_size)
    train, train_choices = choose_image_training(
        machine,
        asked.train,
        batch_size=batch_size if machine.device.type == "cpu" else 2 * batch_size,
        num_images=len(dataset.train),
        image_size=(cached_height, cached_width),
    )
    if train.cache:  # at the input's size, so that loading costs next to nothing
        train = train.model_copy(update={"num_workers": 0})
    augment = _choose_augmentation((height, width), is_grey=is_grey, is_upright=dataset.upright)
    flip = "a mirrored image is taken to have the same class; not so for writing or sides"
    if not augment.flip:
        flip = f"{CHARACTERS}, whose mirror images may be others"
    optim, optim_choices = _choose_optimiser(train.batch_size, is_pretrained=pretrained is not None)
    experiment = ClassificationExperiment(
        data=ImageDataSettings(source=dataset.source, image_size=scale.image_size, resize=resize),
        model=config,
        task=ClassificationSettings(),
        augment=augment,
        optim=optim,
        train=train,
    )
    flipped = Choice("augment.flip", str(augment.flip).lower(), flip)
    return experiment, [*choices, *train_choices, *optim_choices, flipped]


def choose_scale(size: tuple[int, int], machine: Machine) -> Scale:
    """Return model, input size and patch size for images of this height and width."""
    shorter = min(size)
    if max(size) <= SMALL_PX:
        return Scale("vit_micro", size, 4, "small images: a convolutional stem and two blocks")
    if shorter <= MEDIUM_PX:
        side = 8 * round(shorter / 8)
        reason = f"images up to {MEDIUM_PX} px: the small model with larger patches"
        return Scale("vit_micro", (side, side), 8, reason)
    if machine.device.type == "cpu":
        side = min(CPU_PX, 16 * (shorter // 16))
        return Scale("vit_micro", (side, side), 16, f"images above {MEDIUM_PX} px on a CPU: the small model")
    side = min(ACCELERATOR_PX, 16 * (shorter // 16))
    return Scale("vit_s16", (side, side), 16, f"images above {MEDIUM_PX} px on an accelerator: ViT-S/16")


def choose_resize(shapes: Float64[np.ndarray, " images"], image_size: tuple[int, int]) -> tuple[Resize, str]:
    """Return how images of other shapes are brought to the input, and why; no reason if none is needed.

    Args:
        shapes: width over height of typical images.
    """
    stretch = shapes * image_size[0] / image_size[1]  # against the input's
    lost = 1 - np.minimum(stretch, 1 / stretch)
    cut = float(np.median(lost))
    if cut <= MAX_CUT:
        return "crop", f"a centred crop cuts off {cut:.0%} of a typical image" if lost.any() else ""
    return (
        "letterbox",
        f"a centred crop would cut off {cut:.0%} of a typical image, and squashing distorts it",
    )


def scale_of(pretrained: LoadedModel) -> Scale:
    """Return model, input size and patch size of pretrained weights."""
    height, width = pretrained.preprocessing["image_size"]
    patch_size = getattr(pretrained.config, "patch_size", 1)
    return Scale(pretrained.model_settings["name"], (height, width), patch_size, "the model of the weights")


def choose_mixing(
    settings: AugmentSettings, epochs: float, *, is_upright: bool
) -> tuple[AugmentSettings, list[Choice]]:
    """Choose the augmentation that pays only when each image is seen often."""
    chosen, choices = {}, []
    for name, least, value in (("cutmix", CUTMIX_EPOCHS, 1.0), ("erase", ERASE_EPOCHS, 0.25)):
        chosen[name] = 0.0 if is_upright or epochs <= least else value
        reason = f"{epochs:.1f} epochs planned at first; it helps above {least}"
        if is_upright:
            reason = f"{CHARACTERS}, which a part may not show"
        choices.append(Choice(f"augment.{name}", f"{chosen[name]:g}", reason))
    return settings.model_copy(update=chosen), choices


def _deeper_stem(stem: ConvStemConfig, patch_size: int) -> dict[str, Any]:
    """Add a stride-2 stage for every doubling of the patch, with the narrowest convolution."""
    strides, channels, depths = list(stem.strides), list(stem.channels), list(stem.depths)
    while math.prod(strides) < patch_size:
        strides.insert(0, 2)
        channels.insert(0, channels[0])
        depths.insert(0, 0)
    return stem.with_changes({"strides": strides, "channels": channels, "depths": depths}).model_dump()


def _choose_optimiser(batch_size: int, *, is_pretrained: bool) -> tuple[OptimSettings, list[Choice]]:
    scale = math.sqrt(batch_size / 128)
    if is_pretrained:
        optim = OptimSettings(name="adamw", learning_rate=1e-4 * scale)
        reason = "fine-tuning changes learned weights little"
    else:
        optim = OptimSettings(
            name="muon",
            learning_rate=2e-3 * scale,
            matrix_learning_rate=0.02 * scale,
            betas=(0.9, 0.99),
        )
        reason = "fits small models in fewer steps than AdamW"
    return optim, [
        Choice("optim.name", optim.name, reason),
        Choice("optim.learning_rate", f"{optim.learning_rate:.4g}", f"for batches of {batch_size}"),
    ]


def _choose_augmentation(size: tuple[int, int], *, is_grey: bool, is_upright: bool) -> AugmentSettings:
    is_small = max(size) <= SMALL_PX
    return AugmentSettings(
        min_crop_area=1.0 if is_small else 0.35,
        shift=max(1, round(0.08 * min(size))) if is_small else 0,
        flip=not is_upright,
        rotation=10.0 if is_upright and is_small else 0.0,
        colour=0.0 if is_grey else 0.2,
        mix_probability=0.5,
    )


def _look_at_images(dataset: ImageDataset) -> tuple[Int64[np.ndarray, "images 2"], bool]:
    """Return height and width of a few evenly spaced training images, and whether all are grey."""
    images = dataset.train.images
    sizes, is_grey = [], True
    for index in np.unique(np.linspace(0, len(images) - 1, min(PROBED_IMAGES, len(images))).astype(int)):
        try:
            with open_image(images[index]) as opened:
                sizes.append(upright_size(opened))
                pixels = np.asarray(decode(opened, at_least=(32, 32)))
        except DataError:
            continue
        is_grey = is_grey and bool((pixels == pixels[..., :1]).all())
    if not sizes:
        raise DataError(
            f"none of the training images of {dataset.source} that were tried can be read",
            expected="images that Pillow opens",
            remedy=f"Run: vitrail check {dataset.source}",
        )
    return np.array(sizes), is_grey
