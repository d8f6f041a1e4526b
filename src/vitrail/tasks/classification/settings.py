"""Settings of image classification."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from vitrail.core.config import ImageSize
from vitrail.data.settings import AugmentSettings, DataSettings
from vitrail.train.settings import Experiment, TaskSettings


class ImageDataSettings(DataSettings):
    """What images are read and what size they are brought to."""

    image_size: ImageSize
    """Height and width in pixels that every image is brought to; 64 and 64x48 can be given as well."""
    resize: Literal["squash", "crop"] = "crop"
    """How an image of another shape is brought to ``image_size`` for evaluation: squashed to it, or scaled
    so that its shorter side fits and cropped at the centre."""


class ClassificationSettings(TaskSettings):
    """Settings of image classification."""

    name: Literal["classification"] = "classification"
    """The task."""
    label_smoothing: float = Field(0.1, ge=0, lt=1)
    """Probability mass spread evenly over all classes (Szegedy et al. 2016)."""


class ClassificationExperiment(Experiment):
    """A run that learns to classify images."""

    data: ImageDataSettings
    """What is read."""
    task: ClassificationSettings = ClassificationSettings()
    """What is learned."""
    augment: AugmentSettings = AugmentSettings()
    """How training images are varied."""
