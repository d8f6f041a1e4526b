"""Choose an experiment for images with captions, with reasons.

Choices that have not been measured yet say so.
"""

from __future__ import annotations

import math
from typing import Any

from vitrail.core.errors import ConfigError
from vitrail.data.settings import AugmentSettings
from vitrail.engines.loading import Start, load_start_or_encoder
from vitrail.tasks.captioning.dataset import CaptionDataset
from vitrail.tasks.captioning.settings import CaptionDataSettings, CaptionExperiment, CaptionSettings
from vitrail.tasks.contract import ModelRequest, choose_image_training, encoder_settings, name_model
from vitrail.train.machine import inspect_machine
from vitrail.train.run import Choice
from vitrail.train.settings import OptimSettings

SMALL_MODEL, LARGE_MODEL = "show_attend_tell_small", "show_attend_tell"
MANY_IMAGES = 20_000
CPU_PX, ACCELERATOR_PX = 128, 224
BATCH = 64
MAX_PATCHES = 100  # of an image, for a recurrent decoder on a CPU; time grows with them


def choose(
    dataset: CaptionDataset, asked: CaptionExperiment, request: ModelRequest
) -> tuple[CaptionExperiment, list[Choice]]:
    """Return an experiment with one step, and every choice in it with its reason.

    Of the weights, a captioner's model is used; an image model becomes the encoder, frozen unless
    ``model.encoder_frozen`` says otherwise.

    Raises:
        ConfigError: there is no model of that name, the weights are another model's, or rewards are to train
            random weights.
    """
    machine = inspect_machine()
    start = load_start_or_encoder(asked.weights, request.get("encoder"), task="captioning")
    if start.whole is None and (asked.task.cider_reward or asked.task.bleu_reward):
        raise ConfigError(
            "self-critical training was asked for from an untrained captioner",
            expected="a captioner to start from: almost no word that an untrained one draws is rewarded",
            remedy="Name a trained one with --weights, or leave task.cider_reward and task.bleu_reward at 0",
        )
    is_cpu = machine.device.type == "cpu"
    is_large = len(dataset.train) >= MANY_IMAGES
    usual, kind = (LARGE_MODEL, "the paper's widths") if is_large else (SMALL_MODEL, "the small model")
    why = f"{len(dataset.train):,} training images: {kind}"
    name, reason = name_model(start.whole, request.name, usual, why)
    image_size, size_reason = _choose_size(start, is_cpu=is_cpu)
    if asked.data.is_given("image_size"):
        image_size = asked.data.image_size
    if start.whole is not None:
        config = start.whole.config
        encoder_reason = "the encoder of the weights"
        optim = OptimSettings(name="adamw", learning_rate=2e-4)
        optim_reason = "fine-tuning changes learned weights little"
    else:
        encoder = _encoder_of(start, image_size, is_cpu=is_cpu)
        config = request.configure(name, image_size=image_size, **encoder)
        encoder_reason = "the model's own, trained from random weights"
        optim = OptimSettings(name="adamw", learning_rate=1e-3, betas=(0.9, 0.98))
        optim_reason = "as the paper has Adam for captions (Xu et al. 2015, section 4.3)"
    is_frozen = config.encoder_frozen
    if start.encoder is not None:
        encoder_reason = "the weights that were given" + is_frozen * (
            ", frozen: its features are computed once (model.encoder_frozen=false trains it)"
        )
    train, train_choices = choose_image_training(
        machine, asked.train, batch_size=BATCH, num_images=len(dataset.train), image_size=image_size
    )
    experiment = CaptionExperiment(
        data=CaptionDataSettings(source=dataset.source, image_size=image_size),
        model=config,
        task=CaptionSettings(),
        augment=AugmentSettings() if is_frozen else AugmentSettings(min_crop_area=0.7, flip=True, colour=0.2),
        optim=optim,
        train=train,
    )
    return experiment, [
        Choice("data.image_size", "x".join(map(str, image_size)), size_reason),
        Choice("data.tokens", "words", "few distinct words: each is read and written as one"),
        Choice("model.name", name, reason),
        Choice("model.encoder", config.encoder, encoder_reason),
        *train_choices,
        Choice("optim.name", optim.name, optim_reason),
        Choice("task.beam_size", "3", "for the final score; validations are greedy"),
    ]


def _choose_size(start: Start, *, is_cpu: bool) -> tuple[tuple[int, int], str]:
    if start.whole is not None:
        height, width = start.whole.preprocessing["images"]["image_size"]
        return (height, width), "the size that the weights were trained with"
    if start.encoder is not None:
        height, width = start.encoder.preprocessing["image_size"]
        return (height, width), "the size that the encoder was trained with"
    side = CPU_PX if is_cpu else ACCELERATOR_PX
    return (side, side), "trained from random weights on " + (
        "a CPU: smaller is faster" if is_cpu else "an accelerator"
    )


def _encoder_of(start: Start, image_size: tuple[int, int], *, is_cpu: bool) -> dict[str, Any]:
    """Return the settings of a pretrained encoder; empty if the model has its own."""
    if start.encoder is None:
        return {}
    encoder, changes = encoder_settings(start.encoder)
    found: dict[str, Any] = {"encoder": encoder, "encoder_changes": changes}
    found |= {"encoder_stage": -1, "encoder_frozen": True}
    patch_size = start.encoder.model_settings.get("patch_size")
    if is_cpu and patch_size:
        patches = math.prod(-(-side // int(patch_size)) for side in image_size)
        found["pool"] = math.ceil(math.sqrt(patches / MAX_PATCHES)) if patches > MAX_PATCHES else 1
    return found
