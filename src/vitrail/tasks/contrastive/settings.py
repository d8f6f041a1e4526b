"""Settings of contrastive training on images and texts."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from vitrail.core.config import ImageSize
from vitrail.data.settings import AugmentSettings, DataSettings
from vitrail.train.settings import Experiment, TaskSettings


class ImageTextDataSettings(DataSettings):
    """What images with captions are read to learn how both belong together, and how captions are cut."""

    image_size: ImageSize
    """Height and width in pixels that every image is brought to; 224 and 224x192 can be given as well."""
    resize: Literal["squash", "crop"] = "crop"
    """How an image of another shape is brought to ``image_size``: squashed to it, or scaled so that its
    shorter side fits and cropped at the centre, as published CLIPs do."""
    vocabulary_size: int = Field(4000, ge=16)
    """Number of subwords, special ones included; fewer where the captions have not as many. Weights bring
    their own."""
    lower_case: bool = True
    """Whether letters of captions are made lower-case."""


class ContrastiveSettings(TaskSettings):
    """Settings of learning which images and texts belong together; the loss has none."""

    name: Literal["contrastive"] = "contrastive"
    """The task."""


class ContrastiveExperiment(Experiment):
    """A run that learns which images and texts belong together."""

    data: ImageTextDataSettings
    """What is read."""
    task: ContrastiveSettings = ContrastiveSettings()
    """What is learned."""
    augment: AugmentSettings = AugmentSettings()
    """How training images are varied. Mixing is not for images with texts."""
