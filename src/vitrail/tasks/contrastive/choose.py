"""Choose an experiment for images with texts, with reasons."""

from __future__ import annotations

from vitrail.data.findings import number_of
from vitrail.data.settings import AugmentSettings
from vitrail.engines.loading import load_start
from vitrail.tasks.captioning.dataset import CaptionDataset
from vitrail.tasks.contract import ModelRequest, name_model
from vitrail.tasks.contrastive.settings import ContrastiveExperiment, ImageTextDataSettings
from vitrail.train.machine import inspect_machine
from vitrail.train.run import Choice
from vitrail.train.settings import OptimSettings, TrainSettings

SMALL = "clip_tiny"
CPU_BATCH, ACCELERATOR_BATCH = 128, 512  # images; the number of negatives per image
AUGMENT = AugmentSettings(min_crop_area=0.6, flip=True, colour=0.1)


def choose(
    dataset: CaptionDataset, asked: ContrastiveExperiment, request: ModelRequest
) -> tuple[ContrastiveExperiment, list[Choice]]:
    """Return an experiment with one step, and every choice in it with its reason."""
    machine, pretrained = inspect_machine(), load_start(asked.weights, request.name, task="contrastive")
    name, reason = name_model(pretrained, request.name, SMALL, "the small model of images and texts")
    config = pretrained.config if pretrained else request.configure(name)
    image_size = config.image_size
    is_cpu = machine.device.type == "cpu"
    batch_size = min(CPU_BATCH if is_cpu else ACCELERATOR_BATCH, max(2, len(dataset.train)))
    optim = OptimSettings(
        name="adamw",
        learning_rate=1e-5 if pretrained else 1e-3,
        weight_decay=0.2,  # Radford et al. 2021, table 18
        betas=(0.9, 0.98),  # likewise, of Vision Transformers
    )
    experiment = ContrastiveExperiment(
        data=ImageTextDataSettings(source=dataset.source, image_size=image_size),
        model=config,
        augment=AUGMENT,
        optim=optim,
        train=TrainSettings(steps=1, batch_size=batch_size, precision=machine.precision),
    )
    texts = f"{number_of(dataset.train.num_captions, 'caption')} of {number_of(len(dataset.train), 'image')}"
    size_reason = "the size that the weights were trained with" if pretrained else "the model's own"
    return experiment, [
        Choice("model.name", name, reason),
        Choice("data.image_size", "x".join(map(str, image_size)), size_reason),
        Choice("data.vocabulary_size", str(experiment.data.vocabulary_size), f"{texts}: subwords seen often"),
        Choice("train.batch_size", str(batch_size), "each text is compared with so many images"),
        Choice("optim.name", optim.name, "as CLIP was trained"),
        Choice("augment.flip", "true", "what a caption says mostly holds for the flipped image"),
        Choice(
            "augment.min_crop_area", f"{AUGMENT.min_crop_area:g}", "few images: each is seen in many crops"
        ),
    ]
