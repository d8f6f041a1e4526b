"""The resolved settings of one training run: what is stored, repeated, resumed and overridden."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vitrail.core.config import Config
from vitrail.core.errors import ConfigError
from vitrail.data.augment_settings import AugmentSettings, BoxAugmentSettings
from vitrail.data.settings import (
    BoxDataSettings,
    CaptionDataSettings,
    DataSettings,
    ImageDataSettings,
    ImageTextDataSettings,
    PairDataSettings,
)
from vitrail.train.settings import OptimSettings, Replan, TrainSettings
from vitrail.train.task_settings import (
    CaptionSettings,
    ClassificationSettings,
    ContrastiveSettings,
    DetectionSettings,
    TaskSettings,
    TranslationSettings,
)

__all__ = [
    "EXPERIMENTS",
    "AugmentSettings",
    "BoxAugmentSettings",
    "BoxDataSettings",
    "CaptionDataSettings",
    "CaptionExperiment",
    "CaptionSettings",
    "ClassificationExperiment",
    "ClassificationSettings",
    "ContrastiveExperiment",
    "ContrastiveSettings",
    "DataSettings",
    "DetectionExperiment",
    "DetectionSettings",
    "Experiment",
    "ImageDataSettings",
    "ImageTextDataSettings",
    "OptimSettings",
    "PairDataSettings",
    "Replan",
    "TaskSettings",
    "TrainSettings",
    "TranslationExperiment",
    "TranslationSettings",
    "read_experiment",
]


class Experiment(Config):
    """Everything that determines a run; ``config.json`` of a run directory holds exactly this."""

    data: DataSettings
    """What is read."""
    model: dict[str, Any]
    """``name`` of the variant, and every field of its config."""
    weights: str | None = None
    """What the training starts from: a run directory, the folder of a saved model or a published model, as
    for ``vitrail.load``; null starts from random weights."""
    task: TaskSettings
    """What is learned."""
    optim: OptimSettings = OptimSettings()
    """How weights are changed."""
    train: TrainSettings
    """How long."""
    budget_s: float | None = None
    """The wall-clock budget that the number of steps was fitted to, in seconds; a record, not an input."""


class ClassificationExperiment(Experiment):
    """A run that learns to classify images."""

    data: ImageDataSettings
    """What is read."""
    task: ClassificationSettings = ClassificationSettings()
    """What is learned."""
    augment: AugmentSettings = AugmentSettings()
    """How training images are varied."""


class TranslationExperiment(Experiment):
    """A run that learns to translate."""

    data: PairDataSettings
    """What is read."""
    task: TranslationSettings = TranslationSettings()
    """What is learned."""


class DetectionExperiment(Experiment):
    """A run that learns to detect objects."""

    data: BoxDataSettings
    """What is read."""
    task: DetectionSettings = DetectionSettings()
    """What is learned."""
    augment: BoxAugmentSettings = BoxAugmentSettings()
    """How training images vary."""


class CaptionExperiment(Experiment):
    """A run that learns to caption images; ``weights`` may also be an image model's, for the encoder."""

    data: CaptionDataSettings
    """What is read."""
    task: CaptionSettings = CaptionSettings()
    """What is learned."""
    augment: AugmentSettings = AugmentSettings()
    """How training images are varied; those whose features are kept are not. Mixing is not for captions."""
    keep_features: bool = True
    """Whether what a frozen encoder makes of training and validation images is computed once and kept in a
    file (in ``VITRAIL_CACHE``, or the user's folder of caches); otherwise it runs at every step."""


class ContrastiveExperiment(Experiment):
    """A run that learns which images and texts belong together."""

    data: ImageTextDataSettings
    """What is read."""
    task: ContrastiveSettings = ContrastiveSettings()
    """What is learned."""
    augment: AugmentSettings = AugmentSettings()
    """How training images are varied. Mixing is not for images with texts."""


EXPERIMENTS: dict[str, type[Experiment]] = {
    "classification": ClassificationExperiment,
    "translation": TranslationExperiment,
    "detection": DetectionExperiment,
    "captioning": CaptionExperiment,
    "contrastive": ContrastiveExperiment,
}
"""The kind of experiment of each task."""


def read_experiment(tree: Mapping[str, Any]) -> Experiment:
    """Validate the content of a ``config.json``, whose task says what kind of experiment it is.

    Raises:
        ConfigError: the task is unknown, or a field is unknown, missing or of the wrong type.
    """
    task = tree.get("task")
    name = task.get("name") if isinstance(task, Mapping) else None
    if name not in EXPERIMENTS:
        raise ConfigError(
            f"the settings are for the task {name!r}",
            expected=f"a task among {', '.join(EXPERIMENTS)}",
            remedy="Name the config.json of a run, or install a later version of vitrail",
        )
    return EXPERIMENTS[name].from_tree(tree)
